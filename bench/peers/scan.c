/* Selective scan of one sequence: inputs [channel, token] with row strides, states [channel, state].
   Writes the gated output over z. Vectorised over the states of a channel, threads over channels. */
#include <math.h>

void scan(const float *u, const float *step, const float *a, const float *b, const float *c,
          const float *d, float *z, float *state, long stride_u, long stride_step, long stride_z,
          long channels, long states, long begin, long end) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < channels; i++) {
        float h[256], decay[256];
        for (long n = 0; n < states; n++) {
            h[n] = state[i * states + n];
            decay[n] = a[i * states + n];
        }
        for (long t = begin; t < end; t++) {
            const float x = u[i * stride_u + t], dt = step[i * stride_step + t];
            float y = 0;
#pragma omp simd reduction(+ : y)
            for (long n = 0; n < states; n++) {
                h[n] = h[n] * expf(dt * decay[n]) + dt * x * b[t * states + n];
                y += h[n] * c[t * states + n];
            }
            const float gate = z[i * stride_z + t];
            z[i * stride_z + t] = (y + d[i] * x) * gate / (1 + expf(-gate));
        }
        for (long n = 0; n < states; n++) state[i * states + n] = h[n];
    }
}
