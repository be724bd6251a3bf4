#compdef %NAME%
# Completion for %NAME% in zsh. The program itself computes the candidates for each completion.

_%NAME%() {
    local -a asked tool answer described
    local line directive prefix tools='%TOOLS%'
    asked=("${(@)words[2,CURRENT]}")
    if [[ -n $tools ]]; then
        if (( CURRENT < 3 )); then
            compadd -- ${=tools}
            return
        fi
        (( ${${=tools}[(Ie)$asked[1]]} )) || return
        tool=("$asked[1]")
        shift asked
    fi
    answer=("${(@f)$(${~words[1]} $tool __complete "${(@)asked}" 2>/dev/null)}")
    directive=${answer[-1]#:}
    answer=("${(@)answer[1,-2]}")
    if [[ ${asked[-1]} == --*=* ]]; then
        compset -P '--[^=]#='
    fi
    for line in "${(@)answer}"; do
        [[ -n $line ]] || continue
        if [[ $line == *$'\t'* ]]; then
            described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        else
            described+=("${line//:/\\:}")
        fi
    done
    if (( $#described )); then
        _describe '%NAME%' described
    elif [[ $directive == 0 ]]; then
        _files
    fi
}

if [[ $funcstack[1] == _%NAME% ]]; then
    _%NAME% "$@"
else
    compdef _%NAME% %NAME%
fi
