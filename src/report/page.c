/* page.html, embedded by the assembler, so that the page stays a file for browser and editor. The assembler finds the
 * path like an include. */
#include "report/page.h"

__asm__(".pushsection .rodata\n"
        ".global ravel__page\n"
        ".hidden ravel__page\n"
        ".type ravel__page, %object\n"
        "ravel__page:\n"
        ".incbin \"report/page.html\"\n"
        ".byte 0\n"
        ".size ravel__page, . - ravel__page\n"
        ".popsection\n");
