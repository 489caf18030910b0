/* What the ranks of a world tell one another when they meet: hellos and the table. What is taken is in range, and its
 * texts end. */
#include "comm/tcp.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void try_hello(const uint8_t *data, size_t bytes) {
    tcp_hello hello;
    memset(&hello, 0xa5, sizeof hello);
    if (!ravel__tcp_read_hello(data, (int64_t)bytes, &hello)) return;
    if (bytes != sizeof hello || hello.magic != TCP_MAGIC || hello.version != TCP_VERSION) abort();
    if (!memchr(hello.address, '\0', sizeof hello.address)) abort();
}

static void try_table(const uint8_t *data, size_t bytes) {
    tcp_table table;
    if (!ravel__tcp_read_table(data, (int64_t)bytes, 4, &table)) return;
    if (bytes != sizeof table || table.ranks != 4 || table.rank < 0 || table.rank >= 4) abort();
}

/* The first words are made right, so that what is behind them is looked at. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    tcp_hello hello = {.magic = TCP_MAGIC, .version = TCP_VERSION};
    tcp_table table = {.magic = TCP_MAGIC, .ranks = 4};
    uint8_t room[sizeof hello];
    try_hello(data, bytes);
    try_table(data, bytes);
    memcpy(room, &hello, sizeof hello);
    if (bytes > 0) memcpy(room + 8, data, bytes < sizeof room - 8 ? bytes : sizeof room - 8);
    try_hello(room, sizeof room);
    memcpy(room, &table, sizeof table);
    if (bytes > 0) memcpy(room + 8, data, bytes < sizeof table - 8 ? bytes : sizeof table - 8);
    try_table(room, sizeof table);
    return 0;
}
