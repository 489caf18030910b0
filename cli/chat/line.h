/* Lines typed in a terminal: keys of an editor, history, and pasted text as one turn, of any length.
 *
 *     cli_line *l = cli_line_open();                 NULL: no terminal that can be edited in
 *     while ((text = cli_line_read(l, "> ", &bytes)) != NULL) use(text);
 *     cli_line_free(l);
 *
 * Left and Right, Home and End, words with Ctrl or Alt; Up and Down: earlier turns; Ctrl-U, Ctrl-K, Ctrl-W cut;
 * Alt-Enter is a line break. Ctrl-C clears what is typed, and at an empty line ends, as Ctrl-D does. The terminal is as
 * it was between two calls. */
#ifndef CLI_LINE_H
#define CLI_LINE_H

#include <stddef.h>

typedef struct cli_line cli_line;

cli_line *cli_line_open(void);
void cli_line_free(cli_line *line);
/* The next turn, valid until the next call; it may hold line breaks. NULL at the end: Ctrl-D, Ctrl-C (cli_stop is
 * set), a signal, no memory. */
const char *cli_line_read(cli_line *line, const char *prompt, size_t *bytes);

#endif
