/* ravel/source.h: where samples come from.
 *
 * Nouns
 *   source   a data set that is read by row number. It does not change once it is open, and every thread of a process
 *            may use it at once: one source serves all `threads` ranks.
 *   row      one record, 0 .. count-1; usually one sample, several where rows come already packed.
 *   field    one array of a sample, as in ravel/batch.h: one element per token ("tokens", "loss_mask", ...) or one for
 *            the whole sample ("reward"). A source declares its fields once; all its samples have them.
 *   reader   one thread's scratch memory for reading; it holds the samples that were read last.
 *
 *     ravel_source_options options;
 *     ravel_source_options_default(&options);
 *     options.data = "train.jsonl";
 *     if (ravel_source_open(&options, &source, &err)) ...
 *     ravel_reader_create(source, NULL, NULL, &reader, &err);
 *     while (more) {
 *         ravel_order_rows(&order, cursor, begin, count, rows);               see ravel/order.h
 *         ravel_reader_read(reader, rows, count, &samples, &err);
 *         use(&samples->ragged);
 *     }
 *     ravel_reader_free(reader);
 *     ravel_source_free(source);
 *
 * Kinds: mock data, JSON lines, the caller's own functions, samples that are already in memory. All that open by
 * options have the fields
 *     tokens      i32, RAVEL_FIELD_TOKEN
 *     loss_mask   u8, RAVEL_FIELD_NEXT: 1 if the token has loss (as a target), 0 for prompts
 * and those that options.fields adds.
 */
#ifndef RAVEL_SOURCE_H
#define RAVEL_SOURCE_H

#include <ravel/batch.h>
#include <ravel/options.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_source ravel_source;
typedef struct ravel_reader ravel_reader;
typedef struct ravel_collector ravel_collector;

/* Samples as ravel/batch.h takes them, and where each came from. Read-only. */
typedef struct ravel_samples {
    ravel_ragged ragged;       /* offsets and fields */
    const int64_t *rows;       /* [count] the row that a sample is from; NULL: its own number */
    const int32_t *parts;      /* [count] its place among the samples of its row; NULL: 0 */
    int64_t inserted;          /* answers of conversations that begin with text of the chat template's own, */
    const char *inserted_text; /* and the first such text; NULL: none (ravel/chat.h) */
} ravel_samples;

/* ---- sources that open by options ----------------------------------------------------------------------- */

/* What happens to a row that cannot be used. */
typedef enum ravel_bad_rows {
    RAVEL_BAD_ROWS_ERROR, /* E_DATA names file and line */
    RAVEL_BAD_ROWS_SKIP   /* the sentence goes to the logger as a warning, the row counts as having no samples */
} ravel_bad_rows;
#define RAVEL_BAD_ROWS_CHOICES "error|skip"

/* Where each row begins is found by one scan of the file. A file FILE.rows beside it keeps the list, so that this
 * happens once per machine; it is used as long as size and time of change of FILE are the same. */
typedef enum ravel_row_index { RAVEL_INDEX_AUTO, RAVEL_INDEX_ALWAYS, RAVEL_INDEX_NEVER } ravel_row_index;
#define RAVEL_INDEX_CHOICES "auto|always|never" /* auto: for files of 16 MiB and more */

typedef struct ravel_source_options {
    size_t size;                /* sizeof(ravel_source_options), set by ravel_source_options_default */
    const char *data;           /* a file of JSON lines, or of an array of rows; or else: */
    const char *mock;           /* mock data as ravel/mock.h describes it: JSON text, or "@path" */
    int64_t vocab;              /* mock tokens are below this (0: 32000); a larger one in a file is bad (0: any) */
    const char *fields;         /* more than the two: "advantages:f32:next,reward:f32:sample" */
    int32_t bos, eos;           /* token ids put before and after text; -1: none */
    int64_t truncate;           /* longest sample in tokens, the rest is cut off; 0: never */
    int32_t bad_rows;           /* ravel_bad_rows */
    int32_t no_pairs;           /* 1: a row of "chosen" and "rejected" is bad: one answer is wanted, not two */
    int64_t first_row, end_row; /* only these rows, e.g. a training and an eval split; end 0: to the last */
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the source */
    const char *tokenizer;            /* a model folder: text becomes its tokens; NULL: bytes are the tokens */
    const char *chat_format; /* how conversations are written, a name or a file; NULL: as the folder's template says */
    int32_t train_on;        /* ravel_train_on: which tokens of a conversation get loss */
    int32_t index;           /* ravel_row_index: whether FILE.rows is kept beside a JSON-lines file */
    const char *chat_args;   /* variables of the chat template, a JSON object; NULL: none */
} ravel_source_options;

RAVEL_API void ravel_source_options_default(ravel_source_options *options);
RAVEL_API ravel_option_table ravel_source_option_table(void);

/* Opens options.data or options.mock.
 *
 * JSON lines, or one array of rows: the file is indexed (8 bytes per row, see ravel_row_index), and rows are read when
 * they are asked for; blank lines are passed over. It must not be changed while it is open: reading a row after that is
 * E_IO. A row is an object in one of these forms, whatever the others in the file are:
 *     {"input_ids": [..], "labels": [..]}         labels: the token, or -100: no loss
 *     {"input_ids": [..], "loss_mask": [..]}      0 or 1 (false or true) per token
 *     {"input_ids": [..], "prompt_length": n}     the first n have no loss
 *     {"input_ids": [..]}                         all have it
 *     {"input_ids": [..], "cu_seqlens": [0, ..]}  several samples in a row, taken apart; what lies beyond the last
 *                                                 boundary is padding. "cu_seqlens_padded" says where each begins
 *                                                 when there is padding between them.
 *     {"prompt": "..", "response": ".."}          bytes as tokens, the prompt without loss ("completion" too)
 *     {"text": ".."}                              bytes as tokens, all with loss
 *     {"chosen": "..", "rejected": ".."}          two samples of bytes, the chosen one first; optional "prompt"
 *     {"chosen": [..], "rejected": [..]}          the same of token ids; optional "prompt", without loss
 * bos goes before the text, and eos, which has loss, after it. A packed row may have labels or a loss_mask too, and
 * "prompt_length" as an array.
 *
 * With options.tokenizer text becomes the tokens of that model, and every form of ravel/chat.h is taken: messages,
 * conversations, prompt and completion, instruction and output, text, chosen and rejected (two samples of a row, the
 * chosen one first). bos and eos are then the tokenizer's. */
RAVEL_API ravel_status ravel_source_open(const ravel_source_options *options, ravel_source **source, ravel_error *err);

/* ---- the caller's own ----------------------------------------------------------------------------------- */

/* `read` passes the samples of one row to ravel_collector_add: one, several (a packed row, taken apart) or none. It may
 * be called from several threads at once, one for each reader. A failure ends the reading with its status and sentence,
 * the row's number in front. */
typedef struct ravel_source_hooks {
    size_t size; /* sizeof(ravel_source_hooks) */
    void *user;
    int64_t count;             /* rows */
    const ravel_field *fields; /* copied without their data; must hold "tokens" (i32, per token) */
    int64_t field_count;
    ravel_status (*read)(void *user, int64_t row, ravel_collector *collector, ravel_error *err);
    void (*close)(void *user);        /* when the source is freed; may be NULL */
    const ravel_allocator *allocator; /* NULL: malloc */
    /* Where a row is, for sentences, like ravel_source_where; NULL: "row 16". With it, sentences of `read` name the
     * place themselves. A struct whose size ends before this field has none. */
    size_t (*where)(void *user, int64_t row, char *text, size_t bytes);
} ravel_source_hooks;

RAVEL_API ravel_status ravel_source_callbacks(const ravel_source_hooks *hooks, ravel_source **source, ravel_error *err);

/* One sample: data[f] is its array of field f, with as many elements as the field's kind says; copied. NULL for a
 * field: its pad value. E_DATA if length < 1. */
RAVEL_API ravel_status ravel_collector_add(ravel_collector *collector, int64_t length, const void *const *data,
                                           ravel_error *err);

/* The samples of a packed row: per-token arrays are as long as the row, per-sample ones have `count` elements, and step
 * fields are not possible. Sample i has cu_seqlens[i+1] - cu_seqlens[i] tokens (none: it is passed over) and begins at
 * starts[i], or, if that is NULL, at cu_seqlens[i]. */
RAVEL_API ravel_status ravel_collector_add_packed(ravel_collector *collector, int64_t count, const int64_t *cu_seqlens,
                                                  const int64_t *starts, const void *const *data, ravel_error *err);

/* As ravel_samples has it, of the samples that were added. */
RAVEL_API void ravel_collector_inserted(ravel_collector *collector, int64_t answers, const char *text);

/* Samples in memory (rollouts), one per row; borrowed, and must outlive the source. */
RAVEL_API ravel_status ravel_source_samples(const ravel_samples *samples, const ravel_allocator *allocator,
                                            ravel_source **source, ravel_error *err);

/* ---- using a source ------------------------------------------------------------------------------------- */

RAVEL_API void ravel_source_free(ravel_source *source);
RAVEL_API int64_t ravel_source_count(const ravel_source *source);
/* "jsonl", "mock", "callbacks" or "samples"; static. */
RAVEL_API const char *ravel_source_kind(const ravel_source *source);
/* Where a row is, for a sentence: "train.jsonl:17", lines counted as an editor counts them, or "row 16" where a source
 * has no file. Returns the length that it needs, like snprintf. */
RAVEL_API size_t ravel_source_where(const ravel_source *source, int64_t row, char *text, size_t bytes);
RAVEL_API int32_t ravel_source_field_count(const ravel_source *source);
RAVEL_API const ravel_field *ravel_source_fields(const ravel_source *source);

/* The source must outlive it. */
RAVEL_API ravel_status ravel_reader_create(const ravel_source *source, const ravel_allocator *allocator,
                                           const ravel_logger *logger, ravel_reader **reader, ravel_error *err);
RAVEL_API void ravel_reader_free(ravel_reader *reader);

/* Reads rows[count] in that order. *samples belongs to the reader and is valid until its next read; memory is used
 * again, so reading allocates only while it is still growing. On an error the reader holds no samples. */
RAVEL_API ravel_status ravel_reader_read(ravel_reader *reader, const int64_t *rows, int64_t count,
                                         const ravel_samples **samples, ravel_error *err);

/* Totals of a reader. */
typedef struct ravel_reader_stats {
    int64_t rows, samples, tokens;
    int64_t skipped;   /* rows that were bad and skipped */
    int64_t truncated; /* samples that were cut */
} ravel_reader_stats;

#ifdef __cplusplus
}
#endif
#endif
