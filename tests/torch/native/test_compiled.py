"""torch.compile in an open session, of what is not on device kit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kit.torch.device import open_session


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")  # Python 3.13.0
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_native_module_is_compiled_in_an_open_session(fullgraph: bool) -> None:
    """The session follows all modules by hooks of torch's, which its compiler traces too."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.linspace(-1, 1, 8).reshape(2, 4)
    expected = net(x)
    compiled = torch.compile(net, backend="eager", fullgraph=fullgraph)
    with open_session() as session:
        on_kit = nn.Linear(4, 3).to("kit")
        first = on_kit(x.to("kit"))
        torch.testing.assert_close(compiled(x), expected)
        compiled(x).sum().backward()
        torch.testing.assert_close(on_kit(x.to("kit")).cpu(), first.cpu())
        assert session.metrics()["record.ops"] > 0
    assert net[0].weight.grad is not None
