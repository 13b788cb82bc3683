import pytest
import torch

from engine.cache import KEY, VALUE, KVCache
from kvaudit.errors import EngineError


def small_cache(**changes):
    settings = {
        "num_pages": 5,
        "num_layers": 2,
        "page_size": 4,
        "num_kv_heads": 3,
        "head_dim": 6,
        "device": torch.device("cpu"),
        "dtype": torch.float32,
    }
    return KVCache(**{**settings, **changes})


def test_what_is_written_to_slots_is_gathered_in_table_order():
    cache = small_cache()
    keys, values = torch.randn(5, 3, 6), torch.randn(5, 3, 6)
    # positions 0..4 of a sequence that holds pages 3 and 1
    cache.write(1, cache.rows_of(torch.tensor([12, 13, 14, 15, 4])), keys, values)
    table = torch.tensor([[3, 1]])
    stored_keys, stored_values = cache.gather(1, KEY, table), cache.gather(1, VALUE, table)
    assert torch.equal(stored_keys[0, :5], keys)
    assert torch.equal(stored_values[0, :5], values)
    assert not cache.gather(0, KEY, table).any()
    wider = cache.gather(1, KEY, torch.tensor([[1, 0], [4, 3]]))
    assert wider.shape == (2, 8, 3, 6)
    assert torch.equal(wider[1, 4:], keys[:4])


def test_a_page_is_one_contiguous_piece_and_travels_with_all_layers():
    first, second = small_cache(), small_cache(num_pages=2)
    first.tensor.normal_()
    assert first.page(2).is_contiguous()
    assert first.page_bytes == 2 * 2 * 4 * 3 * 6 * 4
    second.copy_page_from(first, 2, 1)
    assert torch.equal(second.page(1), first.page(2))
    assert not second.page(0).any()
    second.check_integrity()


def test_a_narrow_value_leaves_the_rest_of_its_slot_as_it_was():
    cache = small_cache()
    cache.tensor.fill_(7.0)
    cache.write(0, cache.rows_of(torch.tensor([6])), torch.ones(1, 3, 6), torch.ones(1, 3, 4))
    slot = cache.page(1)[0, VALUE, 2]
    assert (slot[:, :4] == 1.0).all()
    assert (slot[:, 4:] == 7.0).all()


def test_pools_of_different_shape_do_not_exchange_pages():
    with pytest.raises(AssertionError, match="different shape"):
        small_cache().copy_page_from(small_cache(page_size=8), 0, 0)


def test_a_pool_that_does_not_fit_in_memory_is_refused_with_its_size():
    with pytest.raises(EngineError, match="GiB"):
        small_cache(num_pages=2**46)
