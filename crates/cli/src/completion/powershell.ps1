# Completion for %NAME% in PowerShell. The program itself computes the candidates for each completion.

Register-ArgumentCompleter -Native -CommandName '%NAME%' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $tools = @(%QUOTED_TOOLS%)
    $before = @($commandAst.CommandElements |
        Where-Object { $_.Extent.EndOffset -lt $cursorPosition } |
        ForEach-Object { $_.Extent.Text })
    $program = $before[0]
    $words = @($before | Select-Object -Skip 1)
    $tool = @()
    if ($tools.Count -gt 0) {
        if ($words.Count -eq 0) {
            $tools | Where-Object { $_.StartsWith($wordToComplete) }
            return
        }
        if ($tools -notcontains $words[0]) { return }
        $tool = @($words[0])
        $words = @($words | Select-Object -Skip 1)
    }
    $last = $wordToComplete
    # PowerShell passes an empty word to a program only if the word is quoted.
    if ($last -eq '') { $last = '""' }
    $prefix = ''
    if ($wordToComplete -match '^--[^=]+=') { $prefix = $Matches[0] }
    $answer = @(& $program @tool __complete @words $last 2>$null)
    $answer | Where-Object { $_ -and -not $_.StartsWith(':') } | ForEach-Object {
        $name, $about = $_ -split "`t", 2
        if (-not $about) { $about = $name }
        [System.Management.Automation.CompletionResult]::new("$prefix$name", $name, 'ParameterValue', $about)
    }
}
