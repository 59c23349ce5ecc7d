"""Products that several products of a kernel have in common, computed once.

Several gradients multiply by what leads to one intermediate: ``d_x = w * e * r * s``, ``d_w = s * e * x * r``. Their
factors come in the orders in which deriving has met them, so that no two of these products share more than what happens
to stand first. Here ``e * r * s`` becomes one product, which gets a name like anything that is
read twice: fewer multiplications, and one value to keep where several traversals of a row need it (fuse/reuse).

Only what deriving has made is taken apart (core/regroupable). The products that save most are made first, one at a
time: the largest that two of them have in common, for all that have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from fusegen.core.ir import Call, Const, Expr, rebuild
from fusegen.core.regroupable import Regroupable, regroupable
from fusegen.core.text import Order

# Products that are compared with each other, each with all others; and their factors. Ops that have more of them were
# unrolled, mostly, and what they have in common was written once.
MOST_PRODUCTS, MOST_FACTORS = 32, 32


@dataclass(eq=False)
class _Shared:
    """A product that several have in common: a factor of these. Its own factors may be such products."""

    factors: Counter[Expr | _Shared]


@dataclass
class _Product:
    """What stands above a fraction bar, what stands below, and the sign."""

    factors: Counter[Expr | _Shared]
    below: list[Expr]
    negative: bool


def share_products(
    nodes: Sequence[Expr], order: Order, whole: Container[Expr], fixed: Callable[[Expr], bool]
) -> dict[Expr, Expr]:
    """Each of the expressions with what their products have in common.

    Args:
        nodes: the expressions and all their parts, children before parents.
        order: in which factors are multiplied.
        whole: what is not taken apart.
        fixed: whether something is the same along a row. That is a factor by itself, and the last one.
    """
    products = _products(nodes, lambda node: node in whole or fixed(node))
    if not 1 < len(products) <= MOST_PRODUCTS or not _share(products):
        return {node: node for node in nodes}
    return _rebuilt(nodes, products, order, fixed)


def _products(nodes: Sequence[Expr], is_whole: Callable[[Expr], bool]) -> dict[Expr, _Product]:
    """The products that are no factors of another, or something else as well, in order."""
    made = [node for node in nodes if isinstance(node, Regroupable)]
    parts = {node for node in made if not _is_reciprocal(node) and not is_whole(node)} if len(made) > 1 else set()
    if not 1 < len(parts) <= MOST_PRODUCTS * MOST_FACTORS:
        return {}
    read_by_others = {child for node in nodes if node not in parts for child in node.children}
    inner = {child for node in parts for child in node.children}
    found: dict[Expr, _Product] = {}
    for node in made:
        if node in parts and (node in read_by_others or node not in inner):
            product = _apart(node, is_whole)
            if product is not None:
                found[node] = product
    return found


def _is_reciprocal(node: Expr) -> bool:
    """Whether it is computed once for all that it multiplies (derive/reciprocals)."""
    match node:
        case Call("div", (Const(value), _)):
            return value == 1
    return False


def _apart(root: Expr, is_whole: Callable[[Expr], bool]) -> _Product | None:
    """The factors of a product; None if they are too many, or of several dtypes."""
    found = _Product(Counter(), [], negative=False)
    stack = [(root, False)]
    while stack:
        node, inverse = stack.pop()
        match node:
            case _ if node is not root and (is_whole(node) or _is_reciprocal(node)):
                pass
            case Regroupable("mul", (a, b)) if not inverse:
                stack += [(b, False), (a, False)]
                continue
            case Regroupable("div", (a, b)) if not inverse:
                stack += [(b, True), (a, False)]
                continue
            case Call("neg", (a,)) if not inverse:
                found.negative = not found.negative
                stack.append((a, False))
                continue
        if inverse:
            found.below.append(node)
        else:
            found.factors[node] += 1
        if node.dtype is not root.dtype or found.factors.total() + len(found.below) + len(stack) > MOST_FACTORS:
            return None
    return found


def _share(products: dict[Expr, _Product]) -> bool:
    """Put shared products in the place of their factors, wherever they are; whether there are any."""
    items: list[_Product | _Shared] = list(products.values())
    pairs: dict[tuple[int, int], Counter[Expr | _Shared]] = {}
    changed = list(range(len(items)))
    while changed:
        _compare(items, changed, pairs)
        common = _best(pairs)
        if common is None:
            break
        found = _Shared(common)
        items.append(found)
        changed = [place for place, item in enumerate(items) if common <= item.factors]
        for place in changed[:-1]:
            items[place].factors = items[place].factors - common + Counter([found])
    return len(items) > len(products)


def _compare(
    items: list[_Product | _Shared], changed: Sequence[int], pairs: dict[tuple[int, int], Counter[Expr | _Shared]]
) -> None:
    """Find what those that have changed have in common with each of the others: at least two factors."""
    for one in changed:
        for other in range(len(items)):
            if other != one:
                both = items[one].factors & items[other].factors
                pair = min(one, other), max(one, other)
                if both.total() > 1:
                    pairs[pair] = both
                else:
                    pairs.pop(pair, None)


def _best(pairs: dict[tuple[int, int], Counter[Expr | _Shared]]) -> Counter[Expr | _Shared] | None:
    """The factors that two products have in common, and whose product saves most multiplications; the first of them."""
    have: dict[frozenset[tuple[Expr | _Shared, int]], tuple[Counter[Expr | _Shared], set[int]]] = {}
    for pair, both in pairs.items():
        have.setdefault(frozenset(both.items()), (both, set()))[1].update(pair)
    best, most = None, 0
    for common, places in have.values():
        saved = (common.total() - 1) * (len(places) - 1)
        if saved > most:
            best, most = common, saved
    return best


def _rebuilt(
    nodes: Sequence[Expr], products: dict[Expr, _Product], order: Order, fixed: Callable[[Expr], bool]
) -> dict[Expr, Expr]:
    """Each node, made of what its factors have become."""
    done: dict[Expr, Expr] = {}
    made: dict[int, Expr] = {}

    def product_of(factors: Counter[Expr | _Shared]) -> Expr:
        values = {factor: shared_product(factor) if isinstance(factor, _Shared) else done[factor] for factor in factors}
        places = {factor: (fixed(value), order(value)) for factor, value in values.items()}
        once = sorted(factors, key=places.__getitem__)
        # The same factor again stands behind all others: its square may have no room where the product has.
        again = [factor for factor in once for _ in range(factors[factor] - 1)]
        result, *rest = [values[factor] for factor in (*once, *again)]
        for value in rest:
            result = regroupable("mul", result, value)
        return result

    def shared_product(shared: _Shared) -> Expr:
        if id(shared) not in made:
            made[id(shared)] = product_of(shared.factors)
        return made[id(shared)]

    for node in nodes:
        product = products.get(node)
        if product is None:
            done[node] = rebuild(node, tuple(done[child] for child in node.children))
            continue
        result = product_of(product.factors)
        for divisor in product.below:
            result = regroupable("div", result, done[divisor])
        done[node] = -result if product.negative else result
    return done
