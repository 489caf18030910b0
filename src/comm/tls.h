/* Encryption of links: what a link needs of a TLS library, as a table that a module fills (tls.c: libravel_tls.so,
 * OpenSSL 3).
 *
 * TLS 1.3 runs between the TCP connection and the link's own protocol (comm/link/link_frame.h), which is the same
 * inside it. By default both ends prove the token to TLS, too (a pre-shared key made from it, with an ephemeral key
 * exchange, so that recorded traffic cannot be read by who learns the token later). With certificates, each end shows
 * one that the other checks against its authorities. */
#ifndef RAVEL_COMM_TLS_H
#define RAVEL_COMM_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

enum {
    RAVEL__TLS_FIRST = 0x16 /* the first byte of a connection */,
    RAVEL__TLS_VERSION = 1,
    RAVEL__TLS_KEY = 32,
    RAVEL__TLS_WHY = 256
};

/* PEM files of this side's certificate chain and key, and of the authorities that it trusts: all, or none. */
typedef struct ravel__tls_files {
    const char *certificate, *key, *authorities;
} ravel__tls_files;

typedef struct ravel__tls {
    int32_t version, bytes; /* RAVEL__TLS_VERSION; sizeof(ravel__tls) */
    /* What the sessions of a hub share; NULL: why[RAVEL__TLS_WHY] says what is wrong. */
    void *(*open)(const ravel__tls_files *files, char *why);
    void (*close)(void *context);
    /* A session on a connected socket, which stays the caller's. key: from the token. NULL: no memory. */
    void *(*begin)(void *context, int fd, int accepts, const uint8_t key[RAVEL__TLS_KEY]);
    void (*end)(void *session);
    /* 1: done; 0: call again when the socket can be read, or (*writes = 1) written; -1: failed, why says how; an
     * empty why: the peer closed the connection. Never waits. */
    int (*handshake)(void *session, int *writes, char *why);
    /* As recv and send with MSG_DONTWAIT | MSG_NOSIGNAL: -1 with EAGAIN, or EBADMSG for bytes that were changed on the
     * way. What was given to a write that said EAGAIN must be the beginning of what is given to the next one. */
    ssize_t (*read)(void *session, void *to, size_t bytes);
    ssize_t (*write)(void *session, const struct iovec *list, int count);
    /* Whether bytes came from the socket and were not yet read: no event will announce them. */
    int (*pending)(const void *session);
} ravel__tls;

/* The module exports it as `ravel_tls`. */
typedef const ravel__tls *(*ravel__tls_fn)(void);

#endif
