# Read by every interactive bash, after /etc/bash.bashrc.
[ -n "$PS1" ] || return 0
if [ "$(id -u)" = 0 ]; then
	PS1='\[\e[1;31m\]\u@\h\[\e[0m\]:\[\e[1;34m\]\w\[\e[0m\]# '
else
	PS1='\[\e[1;32m\]\u@\h\[\e[0m\]:\[\e[1;34m\]\w\[\e[0m\]$ '
fi
alias ls='ls --color=auto' ll='ls -l' grep='grep --color=auto'
