sh mk/lint.sh "${BUILD%/test}"
