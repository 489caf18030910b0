/* report.html, embedded. The assembler finds the path like an include. */
#include "cli/report.h"

__asm__(".pushsection .rodata\n"
        ".global report_page\n"
        ".hidden report_page\n"
        ".type report_page, %object\n"
        "report_page:\n"
        ".incbin \"cli/report.html\"\n"
        ".byte 0\n"
        ".size report_page, . - report_page\n"
        ".popsection\n");
