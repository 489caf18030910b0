# Opens a page in a frame of 375 pixels, a phone's width, and prints what sticks out of it sideways; nothing if all is well.
#     narrow.sh PAGE FOLDER      FOLDER: for what is written on the way
set -u
cat >"$2/narrow.html" <<END
<body><iframe id="page" src="file://$(realpath "$1")" width="375" height="800"></iframe><script>
addEventListener("load", () => setTimeout(() => {
  const page = document.getElementById("page").contentDocument, width = page.documentElement.clientWidth;
  const out = e => e.getBoundingClientRect().right > width + 1 && !e.closest(".wide, svg, #tip");
  const names = [...page.querySelectorAll("body *")].filter(out).map(e => e.tagName + " " + e.className + " to " + Math.round(e.getBoundingClientRect().right));
  document.body.dataset.narrow = width > 300 && page.documentElement.scrollWidth <= width ? "ok" : width + " of " + page.documentElement.scrollWidth + ": " + names.slice(0, 9).join("; ");
}, 500));
</script></body>
END
said=$(sh tests/browser.sh "$2" --allow-file-access-from-files --virtual-time-budget=5000 \
    --dump-dom "file://$(realpath "$2")/narrow.html" 2>/dev/null | grep -o 'data-narrow="[^"]*"')
case "$said" in '') echo "the page was not drawn" ;; *'"ok"') ;; *) echo "$said" ;; esac
