"""The iterations of the head as Triton kernels: one program for each query Q, nothing launched between two iterations.

With n samples, W(Q) = A^T Z and Hessian products need the Gram matrix K = Z Z^T only, so that cost does not depend
on d. In coefficients (n, C), where a predictor A^T Z has the squared norm <A, K A>:

    logits            L = K A
    gradient of l     G = r (S - Y) + ridge A
    Hessian product   H[D] = r J(K D) + ridge D

Conjugate gradients carries K D along with D, so an iteration is one n x n product. Directions are found with products
rounded to tf32 (or better, `INNER`); what a direction is judged by, logits and gradients, uses three such products
(`OUTER`), about as good as float32. Newton's method and rounds of refinement mend what a rounded direction lacks.

Shapes are powers of two: N rows, CP classes. Padding rows have weight and Gram entries zero, padding classes logits of
minus infinity. A weight of nan makes every comparison false: loops end, and nan is what comes out.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

OUTER = tl.constexpr("tf32x3")


@triton.jit
def _total(values):
    return tl.sum(tl.sum(values, 1), 0)


@triton.jit
def _softmax(logits):
    powers = tl.exp(logits - tl.max(logits, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def _conjugate_gradients(K, weighted, S, ridge, G, KG, tolerance, most, INNER: tl.constexpr):
    """X with H[X] = G, to a residual of tolerance |G|, and the number of products; `weighted` is r S."""
    X = tl.zeros_like(G)
    R, KR, D, KD = G, KG, G, KG
    square = _total(G * KG)
    goal = tolerance * tolerance * square
    k = 0
    while (square > goal) & (k < most):
        HD = weighted * (KD - tl.sum(S * KD, 1)[:, None]) + ridge * D
        KHD = tl.dot(K, HD, input_precision=INNER)
        step = square / _total(D * KHD)
        X += step * D
        R -= step * HD
        KR -= step * KHD
        following = _total(R * KR)
        ratio = following / square
        square = following
        D = R + ratio * D
        KD = KR + ratio * KD
        k += 1
    return X, k


@triton.jit
def _loss(L, A, Y, real, r, ridge):
    top = tl.max(L, 1)
    losses = top + tl.log(tl.sum(tl.exp(L - top[:, None]), 1)) - tl.sum(tl.where(Y, L, 0.0), 1)
    return tl.sum(r * losses, 0) + 0.5 * ridge * _total(tl.where(real, A * L, 0.0))


@triton.jit
def solve(
    gram, labels, weights, queries, coefficients, residuals, counts,
    C, ridge, tolerance, most_newton, most_products,
    N: tl.constexpr, CP: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """A(Q), (m, N, CP): Newton's method from zero until |gradient| <= tolerance ridge |W|.

    gram (m, N, N), labels and weights (E, N), queries (m,). Also |gradient|, which over ridge bounds the error of W,
    and the iterations.
    """
    i = tl.program_id(0)
    q = tl.load(queries + i)
    rows, columns = tl.arange(0, N), tl.arange(0, CP)
    K = tl.load(gram + i * N * N + rows[:, None] * N + rows[None, :])
    r = tl.load(weights + q * N + rows)
    y = tl.load(labels + q * N + rows)
    Y = columns[None, :] == y[:, None]
    ones = Y.to(tl.float32)
    real = (columns < C)[None, :] & (rows >= 0)[:, None]
    lengths = tl.sum(tl.where(rows[:, None] == rows[None, :], K, 0.0), 1)
    unit = 1.0 / tl.maximum(tl.max(lengths, 0), 1e-30)  # |W|^2 that moves some logit by one
    lengths = tl.sqrt(lengths)

    A = tl.zeros((N, CP), tl.float32)
    L = tl.where(real, A, float("-inf"))
    error = r[:, None] * (_softmax(L) - ones)
    G = error + ridge * A
    KG = tl.dot(K, G, input_precision=OUTER)
    square = _total(G * KG)
    goal = tolerance * tolerance * ridge * ridge * tl.maximum(0.0 * square, unit)
    newton = 0
    moving = square > goal
    while moving:
        S = _softmax(L)
        size = tl.sum(tl.sum(tl.abs(error), 1) * lengths, 0)
        norm = tl.sqrt(square)
        forcing = tl.maximum(tl.minimum(tl.sqrt(norm / size), 0.3), 0.5 * tl.sqrt(goal) / norm)
        P, _ = _conjugate_gradients(K, r[:, None] * S, S, ridge, G / -norm, KG / -norm, forcing, most_products, INNER)
        P = P * norm
        KP = tl.dot(K, P, input_precision=OUTER)
        slope = _total(G * KP)
        before = _loss(L, A, Y, real, r, ridge)
        step = 1.0 + 0.0 * square
        tries = 0
        enough = before + 1e-6 * tl.abs(before)
        while (tries < 12) & (_loss(L + step * KP, A + step * P, Y, real, r, ridge) > enough + 0.1 * step * slope):
            step = 0.5 * step
            tries += 1
        A += step * P
        L += step * KP
        error = r[:, None] * (_softmax(L) - ones)
        G = error + ridge * A
        KG = tl.dot(K, G, input_precision=OUTER)
        square = _total(G * KG)
        goal = tolerance * tolerance * ridge * ridge * tl.maximum(_total(tl.where(real, A * L, 0.0)), unit)
        newton += 1
        moving = (square > goal) & (newton < most_newton) & (tries < 12)
    tl.store(coefficients + i * N * CP + rows[:, None] * CP + columns[None, :], A)
    tl.store(residuals + i, tl.sqrt(tl.maximum(square, 0.0)) + 0.0 * square)
    tl.store(counts + i, newton)


@triton.jit
def pairs(
    logits, labels, weights, alpha, queries, matrix, shares, own, probabilities,
    E, C, m,
    N: tl.constexpr, CP: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """From logits (E N, m CP) of every W(Q) on every sample: the matrix and the weights (m, E).

    Logits become share * r (S - Y), whose mean over the queries present is the gradient of the risk by logits; what
    belongs to Q's own samples goes to `own`, r (S - Y), and `probabilities`, (m, N, CP). RULE 0 takes the weights from
    alpha (m, E), 1 the largest loss, 2 all the same.
    """
    i = tl.program_id(0)
    q = tl.load(queries + i)
    rows, columns = tl.arange(0, N), tl.arange(0, CP)
    real = (columns < C)[None, :] & (rows >= 0)[:, None]
    place = rows[:, None] * (m * CP) + i * CP + columns[None, :]
    tile = i * N * CP + rows[:, None] * CP + columns[None, :]
    here = tl.max(tl.abs(tl.load(weights + q * N + rows)), 0) != 0
    present, total = 0, tl.sum(tl.load(weights + rows) * 0.0, 0)
    largest, worst = total + float("-inf"), 0
    for p in range(E):
        r = tl.load(weights + p * N + rows)
        L = tl.where(real, tl.load(logits + p * N * m * CP + place), float("-inf"))
        Y = columns[None, :] == tl.load(labels + p * N + rows)[:, None]
        top = tl.max(L, 1)
        powers = tl.exp(L - top[:, None])
        sums = tl.sum(powers, 1)
        loss = tl.sum(r * (top + tl.log(sums) - tl.sum(tl.where(Y, L, 0.0), 1)), 0)
        S = powers / sums[:, None]
        error = r[:, None] * (S - Y.to(tl.float32))
        there = tl.max(tl.abs(r), 0) != 0
        tl.store(matrix + i * E + p, tl.where(here & there, loss, float("nan")))
        tl.store(logits + p * N * m * CP + place, error)
        if p == q:
            tl.store(own + tile, error)
            tl.store(probabilities + tile, S)
        counted = here & there & (p != q)
        if RULE == 0:
            total += tl.where(counted, tl.load(alpha + i * E + p), 0.0)
        else:
            total += tl.where(counted, 1.0, 0.0)
        better = counted & (loss > largest)
        largest = tl.where(better, loss, largest)
        worst = tl.where(better, p, worst)
        present += there.to(tl.int32)
    tl.debug_barrier()
    asked = 0
    for j in range(m):
        asked += (tl.max(tl.abs(tl.load(weights + tl.load(queries + j) * N + rows)), 0) != 0).to(tl.int32)
    for p in range(E):
        counted = here & (tl.max(tl.abs(tl.load(weights + p * N + rows)), 0) != 0) & (p != q)
        if RULE == 0:
            share = tl.load(alpha + i * E + p) / tl.maximum(total, 1e-30)
        elif RULE == 1:
            share = (p == worst).to(tl.float32)
        else:
            share = 1.0 / tl.maximum(total, 1.0)
        share = tl.where(counted, share, 0.0)
        tl.store(shares + i * E + p, share)
        at = logits + p * N * m * CP + place
        tl.store(at, tl.load(at) * (share / tl.where(present > 1, asked, 1)))


@triton.jit
def invert(
    gram, weights, queries, probabilities, targets, coefficients, curved, residuals, counts,
    ridge, tolerance, rounds, most_products,
    N: tl.constexpr, CP: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """X(Q) with H_Q^-1 v = v / ridge + X^T Z, (m, N, CP), and r J(U) of its logits U = T / ridge + K X.

    `targets` T (m, N, CP) are the logits Z v^T. Since v need not lie in the span of the rows, what is solved for is the
    rest: H[X^T Z] = v - H[v] / ridge, whose coefficients are -r J(T) / ridge.
    """
    i = tl.program_id(0)
    q = tl.load(queries + i)
    rows, columns = tl.arange(0, N), tl.arange(0, CP)
    tile = i * N * CP + rows[:, None] * CP + columns[None, :]
    K = tl.load(gram + i * N * N + rows[:, None] * N + rows[None, :])
    r = tl.load(weights + q * N + rows)
    S = tl.load(probabilities + tile)
    weighted = r[:, None] * S
    T = tl.load(targets + tile) / ridge
    X = tl.zeros((N, CP), tl.float32)
    J = weighted * (T - tl.sum(S * T, 1)[:, None])
    G = -J
    KG = tl.dot(K, G, input_precision=OUTER)
    square = _total(G * KG)
    products = 0
    for _ in range(rounds):
        norm = tl.sqrt(tl.maximum(square, 1e-30))
        P, k = _conjugate_gradients(K, weighted, S, ridge, G / norm, KG / norm, tolerance, most_products, INNER)
        X += norm * P
        U = T + tl.dot(K, X, input_precision=OUTER)
        J = weighted * (U - tl.sum(S * U, 1)[:, None])
        G = -J - ridge * X
        KG = tl.dot(K, G, input_precision=OUTER)
        square = _total(G * KG)
        products += k
    tl.store(coefficients + tile, X)
    tl.store(curved + tile, J)
    tl.store(residuals + i, tl.sqrt(tl.maximum(square, 0.0)) + 0.0 * square)
    tl.store(counts + i, products)
