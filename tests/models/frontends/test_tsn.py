"""TSN features: which pictures are seen, what flow looks like, and what a chunk costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from costream.core.records import VideoFrame
from costream.models.oad.tsn import TSN, ResNet, flow_images
from kit.tsn_nets import SMALL, WIDTH, randomise

Pictures = npt.NDArray[np.uint8]


def needs_opencv() -> None:
    pytest.importorskip("cv2", reason="needs the extra 'flow' (opencv-python-headless)")


def frames(pictures: Sequence[Pictures]) -> list[VideoFrame]:
    return [VideoFrame(i, i / 24, i, p.copy) for i, p in enumerate(pictures)]


def textured(moved: int, size: int = 96) -> Pictures:
    """A soft texture that has gone so many pixels to the right."""
    y, x = np.mgrid[:size, :size].astype(np.float64)
    x -= moved
    light = 128 + 60 * np.sin(x / 5) * np.cos(y / 7) + 40 * np.sin((x + y) / 9)
    return np.repeat(light.astype(np.uint8)[..., None], 3, 2)


def small(*streams: str) -> TSN:
    torch.manual_seed(0)
    net = TSN(streams or ("rgb", "flow"), **SMALL)
    randomise(net)
    return net.eval()


def test_the_picture_is_the_fourth_of_a_chunk() -> None:
    net = small("rgb")
    pictures = [np.full((36, 64, 3), 10 * k, np.uint8) for k in range(6)]
    seen = net.prepare(frames(pictures))
    assert seen.shape == (3, 32, 32)
    assert (seen == 30).all()
    with pytest.raises(ValueError, match="a chunk has 6 frames, not 5"):
        net.prepare(frames(pictures[:5]))


@pytest.mark.parametrize("size", [(36, 64), (64, 36), (18, 24), (50, 50)])
def test_pictures_of_any_size_are_seen_in_their_middle(size: tuple[int, int]) -> None:
    net = small("rgb")
    picture = np.zeros((*size, 3), np.uint8)
    picture[size[0] // 2 - 2 : size[0] // 2 + 2, size[1] // 2 - 2 : size[1] // 2 + 2] = 255
    seen = net.prepare(frames([picture] * 6))[0].astype(float)
    places = np.argwhere(seen > 60).mean(0)
    assert seen.shape == (32, 32)
    assert places == pytest.approx([15.5, 15.5], abs=1)


def test_flow_is_in_pixels_right_and_down() -> None:
    needs_opencv()
    pictures = [textured(3 * k) for k in range(6)]
    flow = flow_images(pictures)[:, 30:-30, 30:-30].astype(float)
    assert flow.shape[0] == 10
    assert flow[::2].mean() == pytest.approx(127.5 + 3 * 127.5 / 20, abs=3)
    assert flow[1::2].mean() == pytest.approx(127.5, abs=3)
    down = flow_images([p.transpose(1, 0, 2) for p in pictures])[:, 30:-30, 30:-30]
    assert down[1::2].mean() == pytest.approx(127.5 + 3 * 127.5 / 20, abs=3)
    still = flow_images([pictures[0]] * 6)
    assert set(np.unique(still)) <= {127, 128}


def test_each_network_sees_its_own_part() -> None:
    needs_opencv()
    net = small()
    chunks = torch.randint(0, 256, (3, 4, 13, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        whole = net(chunks)
        parts = {"rgb": chunks[:, :, :3], "flow": chunks[:, :, 3:]}
        alone = []
        for stream, part in parts.items():
            one = small(stream)
            one.networks[stream].load_state_dict(net.networks[stream].state_dict())
            alone.append(one(part))
    assert whole.shape == (3, 4, net.token_width) == (3, 4, 2 * WIDTH)
    torch.testing.assert_close(torch.cat(alone, -1), whole, rtol=1e-5, atol=1e-5)
    assert net.parts == {"rgb": WIDTH, "flow": WIDTH}


def test_resnet_50_is_of_the_published_size() -> None:
    with torch.device("meta"):
        net, both = ResNet(), TSN()
    assert sum(p.numel() for p in net.parameters()) == 25_557_032 - 2048 * 1000 - 1000
    assert net.count_macs(224) == 4_087_136_256
    assert both.token_width == 4096
    assert both.count_macs() == 2 * 4_087_136_256 + 7 * 7 * 7 * 64 * 112 * 112
