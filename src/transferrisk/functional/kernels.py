"""The iterations of the head as Triton kernels: one program for each query Q, nothing launched between two iterations.

With n samples, W(Q) = A^T Z and Hessian products need the Gram matrix K = Z Z^T only, so that cost does not depend
on d. In coefficients (n, C), where a predictor A^T Z has the squared norm <A, K A>:

    logits            L = K A
    gradient of l     G = r (S - Y) + ridge A
    Hessian product   H[D] = r J(K D) + ridge D

Conjugate gradients carries K D along with D, so an iteration is one n x n product. Directions are found with products
rounded to tf32 (`INNER`; to three times that where rows outnumber features, since K then has a null space). What a
direction is judged by, logits and gradients, uses three such products (`OUTER`), about as good as float32. Newton's
method mends what a rounded direction lacks; the inverse Hessian, linear, has rounds of refinement and `OUTER` products
alone, since features of a trained network are so ill-conditioned that rounded ones never get there. Where K A would
lose digits even so, because features are long and rows with different labels close to each other, logits are computed
in float64 (`_in_double`), and directions with `OUTER` products too: rounded ones may lead uphill there.

Shapes are powers of two: N rows, CP classes. Padding rows have weight and Gram entries zero, padding classes logits of
minus infinity. A weight of nan makes every comparison false: loops end, and nan is what comes out.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

OUTER = tl.constexpr("tf32x3")
PIECE = tl.constexpr(16)  # columns of K that are multiplied at once in float64
ROUGH = tl.constexpr(1e-4)  # error of a logit above which float32 is not enough


@triton.jit
def _total(values):
    return tl.sum(tl.sum(values, 1), 0)


@triton.jit
def _any(weights):
    """Return whether some weight is not zero; nan is not."""
    return tl.sum((weights != 0).to(tl.int32), 0) > 0


@triton.jit
def _softmax(logits):
    powers = tl.exp(logits - tl.max(logits, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def _residual(S, Y):
    """S - Y with full relative precision where S is close to Y, as `linear_loss.softmax_residual`."""
    others = tl.where(Y, 0.0, S)
    return tl.where(Y, -tl.sum(others, 1)[:, None], others)


@triton.jit
def _jacobian(S, top, U):
    """J(U) likewise, as `linear_loss.softmax_jacobian`; `top` marks the likeliest class of each row."""
    moment = S * (U - tl.sum(tl.where(top, U, 0.0), 1)[:, None])
    return moment - S * tl.sum(moment, 1)[:, None]


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
        step = square / _total(KD * HD)
        KHD = tl.dot(K, HD, input_precision=INNER)
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
def _losses(L, Y):
    """Cross-entropy of each row: log(1 + sum of e^margin over the other classes), as `linear_loss.row_losses`."""
    margins = tl.where(Y, float("-inf"), L - tl.sum(tl.where(Y, L, 0.0), 1)[:, None])
    largest = tl.maximum(tl.max(margins, 1), 0.0)
    rest = tl.sum(tl.exp(margins - largest[:, None]), 1)
    x = tl.exp(-largest) - 1.0 + rest
    u = 1.0 + x
    return largest + tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))  # log1p(x)


@triton.jit
def _objective(L, A, Y, real, r, ridge):
    return tl.sum(r * _losses(L, Y), 0) + 0.5 * ridge * _total(tl.where(real, A * L, 0.0))


@triton.jit
def _further(L, KP, Y, r, ridge, step, length, across, along):
    """Return the loss at A + step P, where <A, K A>, <P, K A> and <P, K P> are known."""
    return tl.sum(r * _losses(L + step * KP, Y), 0) + 0.5 * ridge * (length + step * (2.0 * across + step * along))


@triton.jit
def _in_double(gram, coefficients, N: tl.constexpr, CP: tl.constexpr):
    """K A in float64, piece by piece, of what lies at these addresses."""
    rows, columns, piece = tl.arange(0, N), tl.arange(0, CP), tl.arange(0, PIECE)
    total = tl.zeros((N, CP), tl.float64)
    for start in range(0, N, PIECE):
        K = tl.load(gram + rows[:, None] * N + (start + piece)[None, :])
        A = tl.load(coefficients + (start + piece)[:, None] * CP + columns[None, :])
        total += tl.dot(K, A, out_dtype=tl.float64)
    return total


@triton.jit
def pack(
    features, labels, environments, ids, rows, classes, weights,
    n, d, C, share,
    N: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A batch in blocks of n samples as rows (E, N, D) with the constant, classes and weights (E, N).

    A sample with a label or an environment that is out of place gets the weight nan.
    """
    e, at = tl.program_id(0), tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    there = at < n
    sample = e * n + at
    values = tl.load(features + sample[:, None] * d + column[None, :], there[:, None] & (column < d)[None, :], 0.0)
    values = tl.where(there[:, None] & (column == d)[None, :], 1.0, values.to(tl.float32))
    place = e * N + at
    tl.store(rows + place[:, None] * D + column[None, :], values, (at < N)[:, None] & (column < D)[None, :])
    label = tl.load(labels + sample, there, -1)
    right = (label >= 0) & (label < C) & (tl.load(environments + sample, there, 0) == tl.load(ids + e))
    tl.store(classes + place, label, at < N)
    tl.store(weights + place, tl.where(there, tl.where(right, share, float("nan")), 0.0), at < N)


@triton.jit
def solve(
    gram, labels, weights, queries, coefficients, residuals, good, rough, counts,
    C, ridge, tolerance, most_newton, most_products,
    N: tl.constexpr, CP: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """A(Q), (m, N, CP) float64: Newton's method from zero until |gradient| <= tolerance ridge |W|.

    gram (m, N, N) float64, labels and weights (E, N), queries (m,). Also |gradient|, which over ridge bounds the error
    of W, whether that is good, whether float32 was too rough, and the iterations.
    """
    i = tl.program_id(0)
    q = tl.load(queries + i)
    rows, columns = tl.arange(0, N), tl.arange(0, CP)
    tile = coefficients + i * N * CP + rows[:, None] * CP + columns[None, :]
    K = tl.load(gram + i * N * N + rows[:, None] * N + rows[None, :]).to(tl.float32)
    r = tl.load(weights + q * N + rows)
    y = tl.load(labels + q * N + rows)
    Y = columns[None, :] == y[:, None]
    real = (columns < C)[None, :] & (rows >= 0)[:, None]
    lengths = tl.sum(tl.where(rows[:, None] == rows[None, :], K, 0.0), 1)
    longest = tl.max(lengths, 0)
    unit = 1.0 / tl.maximum(longest, 1e-30)  # |W|^2 that moves some logit by one
    lengths = tl.sqrt(lengths)

    A = tl.zeros((N, CP), tl.float32)
    L = tl.where(real, A, float("-inf"))
    S = _softmax(L)
    error = r[:, None] * _residual(S, Y)
    G = error + ridge * A
    KG = tl.dot(K, G, input_precision=OUTER)
    square = _total(G * KG)
    value = _objective(L, A, Y, real, r, ridge)
    goal = tolerance * tolerance * ridge * ridge * tl.maximum(0.0 * square, unit)
    newton = 0
    loses = 0.0 * square > 1.0
    moving = square > goal
    while moving:
        size = tl.sum(tl.sum(tl.abs(error), 1) * lengths, 0)
        norm = tl.sqrt(square)
        forcing = tl.maximum(tl.minimum(tl.sqrt(norm / size), 0.3), 0.5 * tl.sqrt(goal) / norm)
        P, _ = _conjugate_gradients(K, r[:, None] * S, S, ridge, G / -norm, KG / -norm, forcing, most_products, INNER)
        P = P * norm
        KP = tl.dot(K, P, input_precision=OUTER)
        slope = _total(G * KP)
        enough = value + 1e-6 * tl.abs(value)
        step = 1.0 + 0.0 * square
        value = _objective(L + KP, A + P, Y, real, r, ridge)
        tries = 0
        while (tries < 12) & (value > enough + 0.1 * step * slope):
            step = 0.5 * step
            value = _objective(L + step * KP, A + step * P, Y, real, r, ridge)
            tries += 1
        A += step * P
        L += step * KP
        S = _softmax(L)
        error = r[:, None] * _residual(S, Y)
        G = error + ridge * A
        KG = tl.dot(K, G, input_precision=OUTER)
        previous = square
        square = _total(G * KG)
        goal = tolerance * tolerance * ridge * ridge * tl.maximum(_total(tl.where(real, A * L, 0.0)), unit)
        newton += 1
        loses = 6e-8 * longest * tl.sqrt(_total(A * A)) > ROUGH
        # Where float32 loses digits the gradient soon stops falling, and float64 takes over.
        stuck = loses & (square > 0.25 * previous) & (newton > 6)
        moving = (square > goal) & (newton < most_newton) & (tries < 12) & (stuck == 0)

    exact = A.to(tl.float64)
    tl.store(tile, exact)
    polishing = loses
    while polishing:
        tl.debug_barrier()
        logits = _in_double(gram + i * N * N, coefficients + i * N * CP, N, CP)
        L = tl.where(real, logits.to(tl.float32), float("-inf"))
        S = _softmax(L)
        G = (r[:, None] * _residual(S, Y) + ridge * exact).to(tl.float32)
        KG = tl.dot(K, G, input_precision=OUTER)
        square = _total(G * KG)
        length = _total(tl.where(real, exact * logits, 0.0)).to(tl.float32)  # |W|^2
        goal = tolerance * tolerance * ridge * ridge * tl.maximum(length, unit)
        norm = tl.sqrt(tl.maximum(square, 1e-30))
        forcing = tl.maximum(tl.minimum(0.5 * tl.sqrt(goal) / norm, 0.3), 0.01)
        polishing = (square > goal) & (newton < most_newton)
        if polishing:
            P, _ = _conjugate_gradients(
                K, r[:, None] * S, S, ridge, G / -norm, KG / -norm, forcing, most_products, OUTER
            )
            P = P * norm
            KP = tl.dot(K, P, input_precision=OUTER)
            slope = _total(G * KP)
            across, along = _total(tl.where(real, P * L, 0.0)), _total(P * KP)
            value = _further(L, KP, Y, r, ridge, 0.0 * square, length, across, along)
            enough = value + 1e-6 * tl.abs(value)
            step = 1.0 + 0.0 * square
            tries = 0
            while (tries < 12) & (
                _further(L, KP, Y, r, ridge, step, length, across, along) > enough + 0.1 * step * slope
            ):
                step = 0.5 * step
                tries += 1
            polishing = (slope < 0.0) & (tries < 12)  # else rounding has the last word
            if polishing:
                exact += (step * P).to(tl.float64)
                tl.debug_barrier()
                tl.store(tile, exact)
        newton += 1
    tl.store(residuals + i, tl.sqrt(tl.maximum(square, 0.0)) + 0.0 * square)
    tl.store(good + i, square <= 100 * goal)
    tl.store(rough + i, loses)
    tl.store(counts + i, newton)


@triton.jit
def pairs(
    logits, labels, weights, alpha, queries, risks, matrix, shares, moved, own, probabilities,
    E, C, m, rate,
    N: tl.constexpr, CP: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Matrix and weights (m, E), and Q's share of the risk (m,), from logits (E N, m CP) of every W(Q) on every sample.

    Logits become share * r (S - Y), whose mean over the queries present is the gradient of the risk by logits; what
    belongs to Q's own samples goes to `own`, r (S - Y), and `probabilities`, (m, N, CP). RULE 0 takes the weights from
    alpha (m, E), 1 the largest loss, 2 all the same; `moved` is alpha after a step of exponentiated gradient.
    """
    i = tl.program_id(0)
    q = tl.load(queries + i)
    rows, columns = tl.arange(0, N), tl.arange(0, CP)
    real = (columns < C)[None, :] & (rows >= 0)[:, None]
    place = rows[:, None] * (m * CP) + i * CP + columns[None, :]
    tile = i * N * CP + rows[:, None] * CP + columns[None, :]
    here = _any(tl.load(weights + q * N + rows))
    present = 0
    total = tl.sum(tl.load(weights + rows) * 0.0, 0)
    largest, worst = total + float("-inf"), 0
    for p in range(E):
        r = tl.load(weights + p * N + rows)
        L = tl.where(real, tl.load(logits + p * N * m * CP + place), float("-inf"))
        Y = columns[None, :] == tl.load(labels + p * N + rows)[:, None]
        loss = tl.sum(r * _losses(L, Y), 0)
        S = _softmax(L)
        error = r[:, None] * _residual(S, Y)
        there = _any(r)
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
        asked += (_any(tl.load(weights + tl.load(queries + j) * N + rows))).to(tl.int32)
    risk, mass, grown = 0.0 * total, 0.0 * total, 0.0 * total
    for p in range(E):
        counted = here & (_any(tl.load(weights + p * N + rows))) & (p != q)
        loss = tl.load(matrix + i * E + p)
        if RULE == 0:
            old = tl.load(alpha + i * E + p)
            share = old / tl.maximum(total, 1e-30)
            takes_part = counted & (loss == loss)
            mass += tl.where(takes_part, old, 0.0)
            grown += tl.where(takes_part, tl.maximum(old, 1e-30) * tl.exp(rate * (loss - largest)), 0.0)
        elif RULE == 1:
            share = (p == worst).to(tl.float32)
        else:
            share = 1.0 / tl.maximum(total, 1.0)
        share = tl.where(counted, share, 0.0)
        tl.store(shares + i * E + p, share)
        risk += tl.where(counted, share * loss, 0.0)
        at = logits + p * N * m * CP + place
        tl.store(at, tl.load(at) * (share / tl.where(present > 1, asked, 1)))
    tl.store(risks + i, tl.where(here, risk / tl.where(present > 1, asked, 0), 0.0))
    if RULE == 0:
        # As `transfer.exponentiated_gradient`: those that take part share out what they had together.
        for p in range(E):
            old, loss = tl.load(alpha + i * E + p), tl.load(matrix + i * E + p)
            counted = here & (_any(tl.load(weights + p * N + rows))) & (p != q) & (loss == loss)
            new = mass * tl.maximum(old, 1e-30) * tl.exp(rate * (loss - largest)) / grown
            tl.store(moved + i * E + p, tl.where(counted, tl.maximum(new, 1e-30), old))


@triton.jit
def invert(
    gram, weights, queries, probabilities, targets, rough, coefficients, curved, residuals, good, counts,
    ridge, tolerance, enough, rounds, most_products, factor, stride, across, along,
    N: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """X(Q) with H_Q^-1 v = v / ridge + X^T Z, (m, N, CP) float64, and factor r J(U) of its logits U = T / ridge + K X.

    That goes to `curved` with i `along` and q `across` it, its rows `stride` apart.

    `targets` T (m, N, CP) are the logits Z v^T. Since v need not lie in the span of the rows, what is solved for is the
    rest: H[X^T Z] = v - H[v] / ridge, whose coefficients are -r J(T) / ridge.
    """
    i = tl.program_id(0)
    q = tl.load(queries + i)
    rows, columns = tl.arange(0, N), tl.arange(0, CP)
    tile = i * N * CP + rows[:, None] * CP + columns[None, :]
    K = tl.load(gram + i * N * N + rows[:, None] * N + rows[None, :]).to(tl.float32)
    r = tl.load(weights + q * N + rows)
    S = tl.load(probabilities + tile)
    loses = tl.load(rough + i) != 0
    weighted = r[:, None] * S
    T = tl.load(targets + tile) / ridge
    X = tl.zeros((N, CP), tl.float64)
    top = columns[None, :] == tl.argmax(S, 1)[:, None]
    J = r[:, None] * _jacobian(S, top, T)
    G = -J
    KG = tl.dot(K, G, input_precision=OUTER)
    square = _total(G * KG)
    first = square
    goal = enough * enough * square
    products, k = 0, 0
    tl.store(coefficients + tile, X)
    while (square > goal) & (k < rounds):
        norm = tl.sqrt(tl.maximum(square, 1e-30))
        P, more = _conjugate_gradients(K, weighted, S, ridge, G / norm, KG / norm, tolerance, most_products, OUTER)
        X += (norm * P).to(tl.float64)
        tl.debug_barrier()
        tl.store(coefficients + tile, X)
        U = T
        if loses:
            tl.debug_barrier()
            U += _in_double(gram + i * N * N, coefficients + i * N * CP, N, CP).to(tl.float32)
        else:
            U += tl.dot(K, X.to(tl.float32), input_precision=OUTER)
        J = r[:, None] * _jacobian(S, top, U)
        G = -J - (ridge * X).to(tl.float32)
        KG = tl.dot(K, G, input_precision=OUTER)
        square = _total(G * KG)
        products += more
        k += 1
    place = curved + q * across + i * along + rows[:, None] * stride + columns[None, :]
    tl.store(place, factor * J)
    tl.store(residuals + i, tl.sqrt(tl.maximum(square, 0.0)) + 0.0 * square)
    tl.store(good + i, square <= 1e-4 * first)
    tl.store(counts + i, products)
