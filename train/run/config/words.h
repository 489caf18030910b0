/* The words of other systems: one table for the answers to unknown options and keys, `ravel words`, completion and
 * docs/glossary.md. */
#ifndef TRAIN_WORDS_H
#define TRAIN_WORDS_H

#include <stddef.h>

typedef struct train_word {
    const char *theirs; /* names, separated by spaces, written with '-' */
    const char *who;
    const char *ours; /* an option (--x), a command, a variable or a metric; NULL: there is nothing of the kind */
    const char *note; /* what differs; NULL: nothing */
} train_word;

extern const train_word train_words[]; /* [train_word_count] */
extern const int train_word_count;

/* However it is written: with - or _ or a dot, in any case. NULL: not known. */
const train_word *train_word_find(const char *name);
/* The option that it is here, without dashes; NULL: none. */
const char *train_word_option(const char *name);
/* What it is here, as half a sentence; 0: not known. */
int train_word_answer(const char *name, char *text, size_t bytes);

#endif
