/* ravel plan. */
#include "cli/cli.h"

int cli_plan(int argc, char **argv) {
    (void)argc;
    (void)argv;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_error_set(&err, RAVEL_E_UNSUPPORTED, "planning is not built in yet");
    return cli_fail("plan", &err);
}
