/* Tokens: the secret that both ends of a link must know.
 *
 *   given   by an option, RAVEL_TOKEN or the file RAVEL_TOKEN_FILE
 *   none    the word "none": every peer may connect
 *   user    neither: a random token in a file that only this user can read, made by the first process that needs it. It serves
 *           processes of one user that meet on loopback. Unix sockets need none: the system says who is at the other
 * end */
#ifndef RAVEL_COMM_TOKEN_H
#define RAVEL_COMM_TOKEN_H

#include <ravel/base.h>

enum { RAVEL__TOKEN_MOST = 1024, RAVEL__TOKEN_PATH = 512 };

/* From `word` (may be NULL), else `file`, else RAVEL_TOKEN, else RAVEL_TOKEN_FILE; "": there is none. */
ravel_status ravel__token_find(const char *word, const char *file, char token[RAVEL__TOKEN_MOST], ravel_error *err);
int ravel__token_is_none(const char *token);

/* The user's own token: of ravel/token in XDG_CACHE_HOME, or ~/.cache, or if neither can be written
 * /tmp/ravel-UID/token. A file of mode 0600 in a folder of mode 0700 that belongs to this user; E_IO names what is
 * wrong with it. */
ravel_status ravel__token_user(char token[RAVEL__TOKEN_MOST], ravel_error *err);

#endif
