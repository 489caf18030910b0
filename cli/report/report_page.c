/* report.html and report_live.js, embedded. The assembler finds the paths like includes. */
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
