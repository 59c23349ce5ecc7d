"""torch's own sample inputs, without what torch's own tests need beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core


@pytest.fixture(autouse=True, scope="module")
def no_search_for_the_test() -> Iterator[None]:
    """For each op torch looks, in vain and for a quarter of a second, for the unittest method that asks it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (common_utils, core):
            patch.setattr(module, "extract_test_fn", lambda: None)
        yield
