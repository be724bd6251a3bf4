# Completion for %NAME% in fish. The program itself computes the candidates for each completion.

function __%NAME%_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    set -l tools (string split -n ' ' -- '%TOOLS%')
    set -l tool
    if test (count $tools) -gt 0
        if test (count $words) -eq 0
            printf '%s\n' $tools
            return
        end
        contains -- $words[1] $tools; or return
        set tool $words[1]
        set -e words[1]
    end
    set -l prefix ''
    if string match -q -- '--*=*' $last
        set prefix (string replace -r '=.*' '=' -- $last)
    end
    set -l answer ($program $tool __complete $words "$last" 2>/dev/null)
    test (count $answer) -gt 0; or return
    set -l directive $answer[-1]
    set -e answer[-1]
    if test (count $answer) -gt 0
        printf '%s\n' $prefix$answer
    else if test "$directive" = ':0'
        __fish_complete_path "$last"
    end
end

complete -c %NAME% -e
complete -c %NAME% -f -a '(__%NAME%_complete)'
