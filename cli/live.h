/* An answer on standard output as it grows, for the commands that show one: whole characters, no part of a stop
 * text. */
#ifndef CLI_LIVE_H
#define CLI_LIVE_H

#include "cli/cli.h"

#include "train/run/answers/stops.h"

typedef struct cli_live {
    train_text_stream letters;
    train_stop_stream stops;
    int64_t shown; /* tokens */
} cli_live;

/* All zero is a closed one. Both must outlive it. */
ravel_status cli_live_open(cli_live *live, const train_text *text, const train_stop_texts *stops, ravel_error *err);
void cli_live_close(cli_live *live);
/* The answer so far: what is new of tokens[count], a stop token left out. E_IO if standard output cannot be written. */
ravel_status cli_live_show(cli_live *live, const int32_t *tokens, int64_t count, ravel_error *err);
/* The rest of it, and a newline. The next show begins another answer. */
ravel_status cli_live_end(cli_live *live, ravel_error *err);

#endif
