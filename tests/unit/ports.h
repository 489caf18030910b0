/* Ports for tests whose peers must know one before the first of them listens. Where port 0 will do, use that. */
#ifndef TESTS_PORTS_H
#define TESTS_PORTS_H

/* A port of `host` (127.0.0.1 or ::1) that is free now: random, so that processes side by side choose differently, and below
 * the kernel's usual range for outgoing connections. 0 where there is no such address: a container without IPv6. */
int ports_free(const char *host);

#endif
