CHANGED=${CHECK:-} sh mk/lint.sh "${BUILD%/test}"
