# Chromium without a window, with a profile of its own: two that share one may take each other for a window of theirs.
#     browser.sh FOLDER ARGUMENTS...      FOLDER: for the profile
set -u
profile=$(mktemp -d "$1/profile.XXXXXX") || exit 1
shift
# Its shared memory is in /tmp: a container's /dev/shm is often too small.
timeout 300 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$profile" "$@"
code=$?
rm -rf "$profile"
exit $code
