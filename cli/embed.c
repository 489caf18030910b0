/* Pages and scripts that are files of their own, embedded. The assembler finds the paths like includes. */
#include "cli/report/report.h"

#define EMBED(name, path)                          \
    __asm__(".pushsection .rodata\n"               \
            ".global " name "\n"                   \
            ".hidden " name "\n"                   \
            ".type " name ", %object\n" name ":\n" \
            ".incbin \"" path "\"\n"               \
            ".byte 0\n"                            \
            ".size " name ", . - " name "\n"       \
            ".popsection\n")

EMBED("report_page", "cli/report/report.html");
EMBED("report_live", "cli/report/report_live.js");
EMBED("cli_bash", "cli/completion/ravel.bash");
EMBED("cli_zsh", "cli/completion/ravel.zsh");
EMBED("cli_fish", "cli/completion/ravel.fish");
EMBED("cli_table_style", "cli/plan/plan_page.css");
