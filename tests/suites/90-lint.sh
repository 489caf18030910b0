# clang-format and cppcheck. clang-tidy takes minutes over the whole tree and is left to `make lint`; here that is said.
LINT_OPEN=clang-tidy sh mk/lint.sh
