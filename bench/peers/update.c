/* One step of Mamba-1's states, of several sequences: h = h exp(dt A) + dt x B, y = C h + D x, gated by z.
   Rows of x, dt, z and out are sequences; strides are in elements. A block of states has the rows of
   its channels side by side. Threads take tiles of a sequence's channels; vectorised over those for
   what each channel has one of, over states for the rest. */
#include <math.h>

#define TILE 64

void update(float *state, const float *x, const float *dt, const float *a, const float *b,
            const float *c, const float *d, const float *z, const float *bias, float *out,
            const int *blocks, long sequences, long channels, long states, long null_block,
            long use_softplus, const long *strides) {
    const long state_block = strides[0], x_row = strides[1], x_channel = strides[2];
    const long dt_row = strides[3], dt_channel = strides[4], b_row = strides[5], c_row = strides[6];
    const long z_row = strides[7], z_channel = strides[8], out_row = strides[9], out_channel = strides[10];
    const long tiles = (channels + TILE - 1) / TILE;
#pragma omp parallel for schedule(static)
    for (long task = 0; task < sequences * tiles; task++) {
        const long s = task / tiles, first = task % tiles * TILE;
        const long width = channels - first < TILE ? channels - first : TILE;
        if (blocks[s] == null_block) continue;
        float step[TILE], input[TILE], gate[TILE];
        for (long i = 0; i < width; i++) {
            input[i] = x[s * x_row + (first + i) * x_channel];
            step[i] = dt[s * dt_row + (first + i) * dt_channel] + bias[first + i];
            gate[i] = z ? z[s * z_row + (first + i) * z_channel] : 0;
        }
        if (use_softplus) {
#pragma omp simd
            for (long i = 0; i < width; i++) {
                const float grown = log1pf(expf(fminf(step[i], 20)));
                step[i] = step[i] > 20 ? step[i] : grown;
            }
        }
#pragma omp simd
        for (long i = 0; i < width; i++) gate[i] = z ? gate[i] / (1 + expf(-gate[i])) : 1;
        float *h = state + blocks[s] * state_block + first * states;
        for (long i = 0; i < width; i++, h += states) {
            const float *row_a = a + (first + i) * states;
            const float dt_i = step[i], push = step[i] * input[i];
            float y = 0;
#pragma omp simd reduction(+ : y)
            for (long n = 0; n < states; n++) {
                h[n] = h[n] * expf(dt_i * row_a[n]) + push * b[s * b_row + n];
                y += h[n] * c[s * c_row + n];
            }
            out[s * out_row + (first + i) * out_channel] = (y + d[first + i] * input[i]) * gate[i];
        }
    }
}
