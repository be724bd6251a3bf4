# Completion for %NAME% in bash. The program itself computes the candidates for each completion.

_%NAME%_complete() {
    local -a words=() tool=()
    local i word glued=0 last answer directive
    # Bash splits `--flag=value` and `host:port` into several words. Join them again.
    for ((i = 1; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == [=:] || $glued == 1 ]] && ((${#words[@]})); then
            words[${#words[@]} - 1]+=$word
            if [[ $word == [=:] ]]; then glued=1; else glued=0; fi
        else
            words+=("$word")
            glued=0
        fi
    done
    if ((glued)); then last=; else last=${COMP_WORDS[COMP_CWORD]}; fi
    COMPREPLY=()
    local tools='%TOOLS%'
    if [[ -n $tools ]]; then
        if ((${#words[@]} < 2)); then
            mapfile -t COMPREPLY < <(compgen -W "$tools" -- "$last")
            return
        fi
        [[ " $tools " == *" ${words[0]} "* ]] || return
        tool=("${words[0]}")
        words=("${words[@]:1}")
    fi
    answer=$("${COMP_WORDS[0]/#\~/$HOME}" "${tool[@]}" __completeNoDesc "${words[@]}" 2>/dev/null) || return
    directive=${answer##*:}
    answer=${answer%:*}
    while IFS= read -r word; do
        [[ -n $word && $word == "$last"* ]] && COMPREPLY+=("$word")
    done <<<"$answer"
    if [[ $directive == 0 ]] && ((${#COMPREPLY[@]} == 0)); then
        compopt -o default 2>/dev/null
    fi
}

complete -F _%NAME%_complete %NAME%
