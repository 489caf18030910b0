/* One JSON object to the samples it holds. */
#ifndef RAVEL_FEED_JSONL_ROW_H
#define RAVEL_FEED_JSONL_ROW_H

#include "feed/source/source.h"

#include "base/json.h"

#include <ravel/chat.h>

/* A reader's memory for rows. */
typedef struct ravel__row_scratch {
    ravel__buffer text; /* the line, as a source read it */
    ravel__json *doc;
    ravel__buffer data[RAVEL__FIELDS_MAX]; /* the row's arrays, as the fields want them */
    ravel__buffer bounds, starts;          /* int64_t, of packed rows */
    ravel_rows *rows;                      /* NULL: no row of text yet, or no tokenizer */
} ravel__row_scratch;

typedef struct ravel__row_rules {
    int64_t vocab; /* 0: any */
    int32_t bos, eos;
    const ravel_tokenizer *tokenizer; /* NULL: bytes are tokens */
    const ravel_chat_format *format;  /* NULL: conversations are refused, with the sentence `no_format` */
    const char *variables;            /* of the chat template, a JSON object; NULL: none */
    int64_t now;                      /* for its strftime_now, the same for all readers */
    int32_t train_on;
    int32_t no_pairs; /* a row of chosen and rejected is bad */
    const char *no_format;
    const char *no_text; /* NULL, or why rows of text are refused: the model's tokenizer is not supported */
} ravel__row_rules;

void ravel__row_scratch_free(const ravel_allocator *allocator, ravel__row_scratch *scratch);

/* The text of one line into the collector, whose fields are the built-in ones and those of the options. E_DATA says
 * what is wrong with the row, without its place. */
ravel_status ravel__row_read(const char *text, size_t bytes, const ravel__row_rules *rules, ravel__row_scratch *scratch,
                             ravel_collector *collector, ravel_error *err);

#endif
