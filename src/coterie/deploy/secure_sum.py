"""Sums of vectors of which nobody sees a summand. Bonawitz, Ivanov, Kreuter, Marcedone, McMahan,
Patel, Ramage, Segal, Seth: Practical Secure Aggregation for Privacy-Preserving Machine Learning.
CCS 2017, Figure 4, for a server that follows the protocol and tries to learn from what it sees.

Site u sends y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv) mod 2^64, with
s_uv agreed between u and v (X25519, HKDF) and b_u its own. The masks s_uv cancel in the sum over
all sites. Every site has given the others a share of b_u and of its private mask key. Once the
server has named who answered, each site reveals its shares of b_u of those who did, and of the key
of those who did not; any `threshold` of them restore what is to be taken off. Nobody reveals both
of one site, so no single x_u is ever without a mask.

A round has four trips: keys, shares, masked vectors, reveals. All secrets are of one round.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coterie.core.errors import BadInput

PRIME = 2**521 - 1  # of the field of the shares, above every secret of 32 bytes
SECRET = 32  # bytes
SHARE = 66  # bytes of a number below PRIME
FRACTION_BITS = 24  # a number is sent as a multiple of 2^-24
LARGEST = 2.0**63  # what a sum may not reach, in multiples


class Keys(NamedTuple):
    """A site's secrets of one round."""

    mask: X25519PrivateKey  # agrees on masks; restored by the others if the site drops out
    channel: X25519PrivateKey  # agrees on what encrypts shares; never revealed
    own: bytes  # b_u


class PublicKeys(NamedTuple):
    """What a site tells the others, through the server."""

    mask: bytes
    channel: bytes


class Reveal(NamedTuple):
    """A site's shares for the server: of b_u of those who answered, of the mask key of those who
    did not.
    """

    own: dict[int, int]
    mask: dict[int, int]


def make_keys() -> Keys:
    """Fresh secrets."""
    return Keys(X25519PrivateKey.generate(), X25519PrivateKey.generate(), secrets.token_bytes(32))


def publish_keys(keys: Keys) -> PublicKeys:
    """The public half."""
    mask, channel = (key.public_key().public_bytes_raw() for key in (keys.mask, keys.channel))
    return PublicKeys(mask, channel)


def threshold_of(sites: int) -> int:
    """How many sites must answer: more than two thirds, so that no two sets of them reveal both
    secrets of one site.
    """
    return 2 * sites // 3 + 1


def make_shares(
    keys: Keys, me: int, peers: Mapping[int, PublicKeys], context: bytes
) -> dict[int, bytes]:
    """{peer: its shares of both secrets, readable by that peer alone}; `context` names the round.

    peers: all sites of the round, this one too.
    """
    threshold = threshold_of(len(peers))
    ids = sorted(peers)
    own = split_secret(int.from_bytes(keys.own, "big"), ids, threshold)
    mask = split_secret(int.from_bytes(keys.mask.private_bytes_raw(), "big"), ids, threshold)
    found = {}
    for peer in ids:
        if peer != me:
            box = _channel(keys, peers[peer], context)
            text = own[peer].to_bytes(SHARE, "big") + mask[peer].to_bytes(SHARE, "big")
            found[peer] = box.encrypt(_nonce(me, peer), text, context)
    return found | {me: own[me].to_bytes(SHARE, "big") + mask[me].to_bytes(SHARE, "big")}


def read_shares(
    keys: Keys, me: int, peers: Mapping[int, PublicKeys], given: Mapping[int, bytes], context: bytes
) -> dict[int, tuple[int, int]]:
    """{peer: (share of b, share of the mask key)} of what the peers encrypted for this site."""
    found = {}
    for peer, text in given.items():
        if peer != me:
            try:
                box = _channel(keys, peers[peer], context)
                text = box.decrypt(_nonce(peer, me), text, context)
            except InvalidTag:
                raise BadInput(f"shares of site {peer} are not of this round or damaged") from None
        found[peer] = (int.from_bytes(text[:SHARE], "big"), int.from_bytes(text[SHARE:], "big"))
    return found


def mask_vector(
    vector: np.ndarray, keys: Keys, me: int, peers: Mapping[int, PublicKeys], context: bytes
) -> np.ndarray:
    """[n] uint64 y_u of a vector x_u of whole numbers; peers: those whose shares this site has."""
    masked = vector + _expand(keys.own, len(vector), context)
    for peer, public in peers.items():
        if peer != me:
            mask = _expand(_agree(keys.mask, public.mask, context), len(vector), context)
            masked = masked + mask if peer > me else masked - mask
    return masked


def reveal_shares(
    held: Mapping[int, tuple[int, int]], answered: Sequence[int], sites: int
) -> Reveal:
    """What the server needs to take masks off; refused where too few have answered."""
    if len(answered) < threshold_of(sites):
        raise BadInput(
            f"only {len(answered)} of {sites} sites answered, {threshold_of(sites)} are needed: "
            "the round is given up and nothing is revealed"
        )
    kept = set(answered)
    return Reveal(
        {peer: own for peer, (own, _) in held.items() if peer in kept},
        {peer: mask for peer, (_, mask) in held.items() if peer not in kept},
    )


def unmask_sum(
    masked: Mapping[int, np.ndarray],
    reveals: Mapping[int, Reveal],
    peers: Mapping[int, PublicKeys],
    context: bytes,
) -> np.ndarray:
    """[n] uint64 the sum of the vectors of those who answered, at the server.

    masked: what they sent. reveals: by site, at least as many as the threshold. peers: the public
    keys of all sites that masked with each other.
    """
    if len(reveals) < threshold_of(len(peers)):
        raise BadInput(
            f"only {len(reveals)} of {len(peers)} sites revealed their shares, "
            f"{threshold_of(len(peers))} are needed: the round is given up"
        )
    length = len(next(iter(masked.values())))
    total = np.asarray(np.stack(list(masked.values())).sum(0, dtype=np.uint64))
    for site in masked:
        own = join_secret({at: reveal.own[site] for at, reveal in reveals.items()})
        total = total - _expand(own.to_bytes(SECRET, "big"), length, context)
    for gone in peers.keys() - masked.keys():
        number = join_secret({at: reveal.mask[gone] for at, reveal in reveals.items()})
        key = X25519PrivateKey.from_private_bytes(number.to_bytes(SECRET, "big"))
        for site in masked:
            mask = _expand(_agree(key, peers[site].mask, context), length, context)
            total = total + mask if gone < site else total - mask  # as `site` had done it
    return total


def split_secret(secret: int, ids: Sequence[int], threshold: int) -> dict[int, int]:
    """Shamir's shares: the values at id + 1 of a random polynomial whose value at 0 is the
    secret.
    """
    factors = [secret, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for i in ids:
        value = 0
        for factor in reversed(factors):
            value = (value * (i + 1) + factor) % PRIME
        shares[i] = value
    return shares


def join_secret(shares: Mapping[int, int]) -> int:
    """The secret of enough shares, by Lagrange's formula at 0."""
    total = 0
    for i, share in shares.items():
        top = bottom = 1
        for j in shares:
            if j != i:
                top = top * (j + 1) % PRIME
                bottom = bottom * (j - i) % PRIME
        total = (total + share * top * pow(bottom, -1, PRIME)) % PRIME
    return total


def to_integers(values: np.ndarray, sites: int) -> np.ndarray:
    """[n] uint64 multiples of 2^-24; refused where a sum over the sites might not fit."""
    scaled = np.rint(np.asarray(values, dtype=np.float64) * 2.0**FRACTION_BITS)
    bound = LARGEST / sites
    if not (np.abs(scaled) < bound).all():
        raise BadInput(  # the server hears of it, so without the number
            "secure aggregation: a number of the upload times the site's rows does not fit: "
            f"at most {bound / 2.0**FRACTION_BITS:g}; the model has diverged, or rows are too many"
        )
    return scaled.astype(np.int64).astype(np.uint64)


def to_numbers(total: np.ndarray) -> np.ndarray:
    """[n] float64 of a sum of such multiples."""
    return total.astype(np.int64).astype(np.float64) / 2.0**FRACTION_BITS


def _agree(mine: X25519PrivateKey, theirs: bytes, context: bytes) -> bytes:
    shared = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    return HKDF(SHA256(), SECRET, salt=None, info=context).derive(shared)


def _channel(keys: Keys, peer: PublicKeys, context: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(_agree(keys.channel, peer.channel, b"shares " + context))


def _nonce(sender: int, receiver: int) -> bytes:
    """Each pair has a key of its own and each direction one message."""
    return sender.to_bytes(6, "big") + receiver.to_bytes(6, "big")


def _expand(seed: bytes, length: int, context: bytes) -> np.ndarray:
    """[length] uint64 of a seed that is used for nothing else."""
    key = HKDF(SHA256(), SECRET, salt=None, info=b"mask " + context).derive(seed)
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), dtype="<u8")
