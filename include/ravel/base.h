/* ravel/base.h: shared by every part of Ravel: status codes, the error record, memory and log hooks.
 *
 * Nouns
 *   status     what a call returns: RAVEL_OK (0) or one code of RAVEL_STATUS_LIST.
 *   error      a small record that the caller owns; on failure it holds one full sentence that says what was
 *              wrong, where, and what would be right.
 *   allocator  where memory comes from; NULL means malloc.
 *   logger     where warnings go; NULL means nowhere. The library never prints, exits or aborts on bad input.
 *
 * The calling pattern, the same everywhere:
 *
 *     ravel_error err = RAVEL_ERROR_INIT;
 *     ravel_plan *plan = NULL;
 *     if (ravel_plan_create(&input, &options, &plan, &err) != RAVEL_OK) {
 *         fprintf(stderr, "%s\n", err.message);
 *         return 1;
 *     }
 *     ...
 *     ravel_plan_free(plan);
 *
 * Rules that hold for every call in every header
 *   - Outputs come last and are set only on success.
 *   - `err` may be NULL. A record that already holds an error keeps it: the first error wins, so one record can
 *     be passed through a whole sequence of calls and checked once.
 *   - Option structs begin with `size`; fill them with their `*_default()` function, then change what you want.
 *     Fields are only ever added at the end, so an old program works with a newer library.
 *   - `*_free(NULL)` does nothing.
 *   - A function may be called from any thread; one object belongs to one thread at a time unless its header
 *     says more.
 *
 * What is not in include/ravel is not API. ravel/ravel.h says which headers are stable and which experimental.
 */
#ifndef RAVEL_BASE_H
#define RAVEL_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAVEL_VERSION_MAJOR  0
#define RAVEL_VERSION_MINOR  1
#define RAVEL_VERSION_PATCH  0
#define RAVEL_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define RAVEL_API               __attribute__((visibility("default")))
#define RAVEL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define RAVEL_API
#define RAVEL_PRINTF(fmt, args)
#endif

/* The version of the library that is running, e.g. "0.1.0"; a static string. */
RAVEL_API const char *ravel_version(void);

/* ---- status --------------------------------------------------------------------------------------------- */

/* One list of codes, grouped by what can no longer be used: nothing, this call, this peer, this communicator. X(name,
 * number, sentence). Numbers are stable. */
#define RAVEL_STATUS_LIST(X)                                            \
    X(OK, 0, "success")                                                 \
    /* this call: nothing changed, correct the input and call again */  \
    X(E_ARGUMENT, 1, "an argument or option is wrong")                  \
    X(E_DATA, 2, "the data is wrong: a sample, a file or a message")    \
    X(E_OVERSIZE, 3, "a sample does not fit the budget")                \
    X(E_OVERFLOW, 4, "a number does not fit its type")                  \
    X(E_MEMORY, 5, "out of memory")                                     \
    X(E_IO, 6, "the operating system refused to read or write")         \
    X(E_UNSUPPORTED, 7, "this build or this back end cannot do that")   \
    X(E_STATE, 8, "the object is not in a state that allows this call") \
    X(E_MISMATCH, 9, "two sides disagree; nothing was moved")           \
    X(E_CHECKSUM, 10, "bytes arrived changed")                          \
    X(E_CALLBACK, 11, "a callback of the caller failed")                \
    X(E_END, 12, "there is no more")                                    \
    X(E_DEVICE, 13, "the device's driver refused")                      \
    /* a peer, and with it the communicator: free it and start again */ \
    X(E_PEER_LOST, 20, "a peer died, left or failed")                   \
    X(E_TIMEOUT, 21, "the deadline passed")                             \
    X(E_DEAD, 22, "what the call is on failed earlier and is dead")     \
    /* a bug in Ravel: please report it */                              \
    X(E_INTERNAL, 30, "an internal check failed")

typedef enum ravel_status {
#define X(name, number, sentence) RAVEL_##name = number,
    RAVEL_STATUS_LIST(X)
#undef X
} ravel_status;

/* "E_DATA" for RAVEL_E_DATA, and the sentence of the list; static strings, also for unknown codes. */
RAVEL_API const char *ravel_status_name(ravel_status status);
RAVEL_API const char *ravel_status_text(ravel_status status);

/* ---- the error record ----------------------------------------------------------------------------------- */

#define RAVEL_ERROR_MESSAGE_BYTES 1020

typedef struct ravel_error {
    int32_t status;                          /* a ravel_status */
    char message[RAVEL_ERROR_MESSAGE_BYTES]; /* a sentence, NUL-terminated, cut with "..." if too long */
} ravel_error;

/* clang-format off */
#define RAVEL_ERROR_INIT {0, {0}}
/* clang-format on */

/* Makes the record empty again. */
RAVEL_API void ravel_error_clear(ravel_error *err);

/* Writes a sentence into an empty record (first error wins) and returns `status`, so that callbacks and programs
 * can report in the same way as the library: `return ravel_error_set(err, RAVEL_E_DATA, "row %d ...", row);` */
RAVEL_API ravel_status ravel_error_set(ravel_error *err, ravel_status status, const char *format, ...)
    RAVEL_PRINTF(3, 4);

/* Puts "context: " in front of the sentence, for callers who know more about where ("file.csv: line 3: ..."). */
RAVEL_API void ravel_error_prefix(ravel_error *err, const char *format, ...) RAVEL_PRINTF(2, 3);

/* ---- memory --------------------------------------------------------------------------------------------- */

/* One function allocates, resizes and frees:
 *     resize(user, NULL, 0, n)     allocate n bytes
 *     resize(user, p, old, n)      grow or shrink
 *     resize(user, p, old, 0)      free, returns NULL
 * `old` is the size of the earlier request, so a hook can count without a table. The result is aligned for any type;
 * NULL means out of memory, and p stays valid. It may be called from several threads at once. */
typedef struct ravel_allocator {
    void *(*resize)(void *user, void *ptr, size_t old_bytes, size_t new_bytes);
    void *user;
} ravel_allocator;

/* ---- log ------------------------------------------------------------------------------------------------ */

typedef enum ravel_log_level { RAVEL_LOG_DEBUG = 0, RAVEL_LOG_INFO = 1, RAVEL_LOG_WARN = 2 } ravel_log_level;

/* `text` is one line without a newline, valid during the call only. */
typedef struct ravel_logger {
    void (*write)(void *user, ravel_log_level level, const char *text);
    void *user;
} ravel_logger;

#ifdef __cplusplus
}
#endif
#endif
