/* exp and log from additions, multiplications and divisions alone, so that every machine and C library gives the same
 * bits (IEEE doubles, no contraction). Good to about 1e-14: for mock data, not for science. */
#ifndef RAVEL_BASE_REAL_H
#define RAVEL_BASE_REAL_H

/* 0 below -700, infinity above 709. */
double ravel__real_exp(double x);
/* Natural logarithm of a positive, finite number; -infinity for 0. */
double ravel__real_log(double x);

#endif
