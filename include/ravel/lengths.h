/* ravel/lengths.h (experimental): lengths (and other columns of integers) from files.
 *
 * Three formats, told by the file's name or by `format`:
 *
 *   csv    one column of lengths, or prompt,response; with or without a header. ',', ';' or a tab between columns,
 *          quotes as in RFC 4180, blank lines and lines that begin with '#' are passed over. A first column without a
 *          name (the index that pandas writes) is passed over too. Of two columns with unknown names `field` must say
 *          which are meant.
 *   jsonl  one JSON object per line; `field` is a path such as "usage.total" or "turns.0.ids". The value is a whole
 *          number, or an array (of token ids), whose length counts. A line may also be a bare number. A file that is
 *          one JSON array of such values reads the same.
 *   npy    NumPy's own format, versions 1 to 3: integers of any width and byte order, shape [n], [n, 1] or [n, 2].
 *
 * If `field` is not given, columns and members are found by well-known names (length, num_tokens, input_ids, ...;
 * prompt_len and response_len, prompt_tokens and completion_tokens, ...). `field` may name one, or two with a comma:
 * "prompt,response". In CSV a field may also be a column's number, from 1.
 *
 *     ravel_lengths *lengths = NULL;
 *     if (ravel_lengths_read("lengths.csv", NULL, &lengths, &err)) ...
 *     ravel_plan_input input = {.size = sizeof input, .count = lengths->count, .lengths = lengths->lengths,
 *                               .prompts = lengths->prompts, .responses = lengths->responses};
 *     ...
 *     ravel_lengths_free(lengths);
 *
 * Files are read in one pass with a small buffer (pipes too; "-" is standard input). Nothing is dropped: a row that
 * cannot be parsed is an error that begins with file:line. Compressed and binary files (gzip, zstd, Parquet, npz, ...)
 * are recognised, and the sentence has the command that makes text of them.
 */
#ifndef RAVEL_LENGTHS_H
#define RAVEL_LENGTHS_H

#include <ravel/options.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ravel_format { RAVEL_FORMAT_AUTO, RAVEL_FORMAT_CSV, RAVEL_FORMAT_JSONL, RAVEL_FORMAT_NPY } ravel_format;
#define RAVEL_FORMAT_CHOICES "auto|csv|jsonl|npy"

typedef struct ravel_read_options {
    size_t size;       /* sizeof(ravel_read_options), set by ravel_read_options_default */
    int32_t format;    /* ravel_format; auto: by extension, and by content if there is none */
    int32_t reserved;  /* 0 */
    const char *field; /* see above; NULL: by well-known names */
    int64_t limit;     /* rows to read at most; 0: all */
    /* Called now and then; `total` is 0 if it is not known. May be NULL. */
    void (*progress)(void *user, int64_t bytes_done, int64_t bytes_total);
    void *user;
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive what is read */
} ravel_read_options;

RAVEL_API void ravel_read_options_default(ravel_read_options *options);
RAVEL_API ravel_option_table ravel_read_option_table(void); /* format, field and limit */

/* Read-only; owned by the library until ravel_lengths_free. Either `lengths`, or `prompts` and `responses`. */
typedef struct ravel_lengths {
    int64_t count;
    const int64_t *lengths;   /* [count], 1 .. 2^31 */
    const int64_t *prompts;   /* [count], 0 .. 2^31 */
    const int64_t *responses; /* [count]; prompt + response is at least 1 and at most 2^31 */
    int64_t longest;          /* of the lengths, or of the sums */
    int64_t total;
    char columns[96]; /* what was read, for people: "prompt_len + response_len" */
    /* [count] the line of each row in its file, from 1, as an editor counts them; NULL: no lines */
    const int64_t *lines;
} ravel_lengths;

/* `options` may be NULL. E_IO if the file cannot be read, E_DATA with file:line if a row is wrong; a file without
 * rows is E_DATA too. */
RAVEL_API ravel_status ravel_lengths_read(const char *path, const ravel_read_options *options, ravel_lengths **lengths,
                                          ravel_error *err);
RAVEL_API void ravel_lengths_free(ravel_lengths *lengths);

#ifdef __cplusplus
}
#endif
#endif
