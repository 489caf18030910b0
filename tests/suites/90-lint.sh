sh mk/lint.sh
