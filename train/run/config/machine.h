/* train/run/config/machine.h: memory and disk that this machine has for a run. */
#ifndef TRAIN_MACHINE_H
#define TRAIN_MACHINE_H

#include <ravel/base.h>

/* INT64_MAX: not known. */
typedef struct train_machine {
    int64_t
        memory; /* that this process may have: the machine's, or the least limit of its cgroup and of those above it */
    int64_t available; /* of the machine's, what other processes leave now (MemAvailable) */
} train_machine;

/* `root`: "", or a folder with proc and sys in it, for tests. */
train_machine train_machine_look(const char *root);
/* Free bytes for files in the folder, or in the nearest one above it that exists. */
int64_t train_machine_disk(const char *folder);

enum { TRAIN_BYTES_TEXT = 32 };
/* "12.6 GiB" in text[TRAIN_BYTES_TEXT], which is returned. */
const char *train_bytes_text(int64_t bytes, char *text);

/* E_MEMORY where `bytes` do not fit: "WHAT needs 30.1 GiB on this machine, which has 23.4 GiB; ADVICE". */
ravel_status train_machine_fits(const train_machine *machine, int64_t bytes, const char *what, const char *advice,
                                ravel_error *err);
/* What is slow rather than impossible: warns where `bytes` fit the machine but not what is available now, or where they do
 * not fit beside `mapped` bytes of files, whose pages then leave memory and are read again. */
void train_machine_warn(const train_machine *machine, int64_t bytes, int64_t mapped, const ravel_logger *logger);

#endif
