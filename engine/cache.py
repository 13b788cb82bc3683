"""KVCache: the key and value tensors of one role's page pool.

Page-major, `[pages, layers, 2, page_size, kv_heads, head_dim]`: one page is one contiguous piece of
memory with all its layers, which makes transfer, poison and checksum a single copy each. Keys are
stored as attention uses them, after RoPE. Nothing is cleared when a page changes hands: what an
owner leaves, the next one finds, as on a real server.
"""

import torch
from torch import Tensor

from kvaudit.errors import EngineError

KEY, VALUE = 0, 1


class KVCache:
    """Storage for `num_pages` pages; who holds which page is not known here.

    Invariant: the tensor is one contiguous block of the shape above, and all indices are valid.

    Attributes:
        tensor: The storage, shape [pages, layers, 2, page_size, kv_heads, head_dim].
    """

    def __init__(
        self,
        *,
        num_pages: int,
        num_layers: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        shape = (num_pages, num_layers, 2, page_size, num_kv_heads, head_dim)
        try:
            self.tensor = torch.zeros(shape, device=device, dtype=dtype)
        except (RuntimeError, MemoryError) as error:
            size_gib = torch.Size(shape).numel() * dtype.itemsize / 2**30
            raise EngineError(
                f"a pool of {num_pages} pages needs {size_gib:.1f} GiB on `{device}`,"
                " which cannot be allocated",
                hint="give the pool fewer tokens",
            ) from error
        self.num_pages = num_pages
        self.page_size = page_size
        # Views, made once: a decode step asks for two of each in every layer.
        rows = self.tensor.view(-1, num_kv_heads, head_dim)
        self._rows = [rows[start:] for start in range(0, 2 * num_layers * page_size, page_size)]
        self._parts = [
            self.tensor[:, layer, part] for layer in range(num_layers) for part in (KEY, VALUE)
        ]
        self._scratch = [self.tensor.new_empty(0), self.tensor.new_empty(0)]

    @property
    def device(self) -> torch.device:
        """Where the pool lives."""
        return self.tensor.device

    @property
    def page_bytes(self) -> int:
        """Size of one page with all its layers, in bytes."""
        return self.tensor[0].numel() * self.tensor.element_size()

    def page(self, page_id: int) -> Tensor:
        """Return a page as a view, [layers, 2, page_size, kv_heads, head_dim]."""
        assert 0 <= page_id < self.num_pages, f"no page {page_id}"
        return self.tensor[page_id]

    def rows_of(self, slots: Tensor) -> Tensor:
        """Return where slots begin in memory, in rows of one token: the same for every layer.

        Args:
            slots: Physical slots, page_id * page_size + offset; int64 [tokens].

        Returns:
            int64 [tokens], for `write`.
        """
        pages = torch.div(slots, self.page_size, rounding_mode="floor")
        return pages * (self.tensor[0, :, :, :, 0, 0].numel() - self.page_size) + slots

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values of one layer.

        Args:
            layer: Layer index.
            rows: As `rows_of` gives them; int64 [tokens].
            keys: [tokens, kv_heads, head_dim].
            values: [tokens, kv_heads, at most head_dim]; narrower ones leave the rest as it was.
        """
        self._rows[2 * layer + KEY].index_copy_(0, rows, keys)
        into = self._rows[2 * layer + VALUE]
        width = values.shape[-1]
        (into if width == into.shape[-1] else into[..., :width]).index_copy_(0, rows, values)

    def gather(self, layer: int, part: int, page_ids: Tensor) -> Tensor:
        """Return the slots of some pages in the order given.

        Args:
            layer: Layer index.
            part: `KEY` or `VALUE`.
            page_ids: int64 [sequences, pages].

        Returns:
            A copy, [sequences, pages * page_size, kv_heads, head_dim], good until the next gather
            of the same part: fresh memory for each would cost more than the copy.
        """
        sequences, pages = page_ids.shape
        shape = (sequences * pages, *self.tensor.shape[3:])
        count = torch.Size(shape).numel()
        if self._scratch[part].numel() < count:
            self._scratch[part] = self.tensor.new_empty(count)
        picked = self._scratch[part][:count].view(shape)
        torch.index_select(self._parts[2 * layer + part], 0, page_ids.reshape(-1), out=picked)
        return picked.view(sequences, pages * self.page_size, *shape[2:])

    def copy_page_from(self, source: "KVCache", source_page: int, page_id: int) -> None:
        """Copy one whole page out of another pool, across devices if need be."""
        assert source.tensor.shape[1:] == self.tensor.shape[1:], "pools of different shape"
        self.page(page_id).copy_(source.page(source_page))

    def check_integrity(self) -> None:
        """Assert that a page is still one contiguous block."""
        assert self.tensor.is_contiguous(), "the pool is not contiguous"
        assert self.tensor.shape[0] == self.num_pages, "pages were lost"
        assert self._rows[0].data_ptr() == self.tensor.data_ptr(), "writes go elsewhere"
