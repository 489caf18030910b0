# clang-format, clang-tidy, cppcheck.
sh mk/lint.sh
