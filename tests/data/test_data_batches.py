import json

import pytest
import torch

from taser.data import Batch, Batches, CropAndFlip, Split


def split(n: int = 23) -> Split:
    x = torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return Split(x, torch.arange(n))


def same(one: Batch, two: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_an_epoch_gives_every_example_once() -> None:
    batches = Batches(split(), 5)
    indices = [batch.index for batch in batches]
    assert [len(index) for index in indices] == [5, 5, 5, 5, 3]
    assert len(batches) == 5
    assert torch.cat(indices).sort().values.tolist() == list(range(23))


def test_rows_belong_together() -> None:
    data = split()
    for x, y, index in Batches(data, 5):
        assert torch.equal(x, data.x[index])
        assert torch.equal(y, data.y[index])


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    batches, other = Batches(split(), 23), Batches(split(), 23, seed=1)
    orders = {tuple(batch.index.tolist()) for each in (batches, batches, other) for batch in each}
    assert len(orders) == 3


def test_without_shuffle_the_order_is_that_of_the_split() -> None:
    batches = Batches(split(), 10, shuffle=False)
    assert torch.cat([batch.index for batch in batches]).tolist() == list(range(23))


@pytest.mark.parametrize(
    ("n", "size", "smallest", "sizes"),
    [
        (127, 64, 2, [64, 63]),
        (128, 64, 2, [64, 64]),
        (66, 64, 2, [64, 2]),
        (65, 64, 2, [65]),  # a single row joins the batch before it
        (129, 64, 2, [64, 65]),
        (67, 64, 4, [67]),  # two rows for each of two processes
        (3, 1, 2, [1, 1, 1]),
        (1, 64, 2, [1]),
    ],
)
def test_a_last_smaller_batch_is_kept(n: int, size: int, smallest: int, sizes: list[int]) -> None:
    batches = Batches(split(n), size, smallest=smallest)
    indices = [batch.index for batch in batches]
    assert [len(index) for index in indices] == sizes
    assert len(batches) == len(sizes)
    assert torch.cat(indices).sort().values.tolist() == list(range(n))


@pytest.mark.parametrize("stop", [0, 3, 5, 7, 12])
def test_a_resumed_run_sees_the_same_batches(stop: int) -> None:
    """Independent of other random draws, at the end of an epoch and inside it."""
    data = split()

    def fresh() -> Batches:
        return Batches(data, 5, seed=3, augment=CropAndFlip(2))

    def run(batches: Batches, saved: dict | None = None, until: int = 15) -> tuple[list, dict]:
        seen, state = [], batches.state_dict()
        while batches.epoch < 3:
            for batch in batches:
                seen.append(batch)
                state = batches.state_dict()
                if saved is None and len(seen) == until:
                    return seen, state
        return seen, state

    whole, _ = run(fresh())
    first, state = run(fresh(), until=stop) if stop else ([], fresh().state_dict())
    torch.rand(100)
    resumed = fresh()
    resumed.load_state_dict(json.loads(json.dumps(state)))
    rest, _ = run(resumed, saved=state)
    assert len(whole) == 15
    assert len(first) + len(rest) == 15
    assert all(same(one, two) for one, two in zip(whole, first + rest, strict=True))


def test_an_epoch_left_in_the_middle_is_taken_up_there() -> None:
    batches = Batches(split(), 5)
    indices = []
    for batch in batches:
        indices.append(batch.index)
        if len(indices) == 2:
            break
    indices += [batch.index for batch in batches]
    assert batches.epoch == 1
    assert torch.cat(indices).sort().values.tolist() == list(range(23))


def test_augmentation_moves_images_alone() -> None:
    data = split()
    for batch in Batches(data, 5, augment=CropAndFlip(2)):
        assert not torch.equal(batch.x, data.x[batch.index])
        assert torch.equal(batch.y, data.y[batch.index])


def test_augmentation_differs_between_batches_and_epochs() -> None:
    x = torch.rand(1, 1, 6, 6).expand(20, 1, 6, 6).contiguous()
    batches = Batches((x, torch.zeros(20)), 10, augment=CropAndFlip(2))
    seen = [batch.x for batch in batches] + [batch.x for batch in batches]
    assert all(not torch.equal(seen[a], seen[b]) for a in range(4) for b in range(a))


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"y should be \(4,\), one int64 label .* got \(3,\)"):
        Batches((torch.rand(4, 2), torch.zeros(3)), 2)
    with pytest.raises(ValueError, match=r"batch_size should be at least 1 .* got 0 and 0"):
        Batches(split(), 0)
    with pytest.raises(ValueError, match="at least one example"):
        Batches((torch.rand(0, 2), torch.zeros(0)), 5)


@pytest.mark.parametrize(("name", "value"), [("seed", 1), ("batch_size", 6), ("examples", 24)])
def test_state_of_other_batches_is_refused(name: str, value: int) -> None:
    state = {**Batches(split(), 5).state_dict(), name: value}
    with pytest.raises(ValueError, match=f"batches with {name}={value}"):
        Batches(split(), 5).load_state_dict(state)
