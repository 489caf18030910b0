/* page.html as it is, put into the library by the assembler: the page stays a file that a browser and an editor know.
 * The path is found as includes are. */
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
