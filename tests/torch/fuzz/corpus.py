"""Programs that once gave something else on device kit than on CPU torch, as short as they fail."""

from __future__ import annotations

__all__ = ["CORPUS"]

CORPUS: dict[str, str] = {
    "an expanded tensor is copied to itself": """
        t0 = torch.arange(3).reshape(3, 1).to(device).expand(3, 3)
        t0[...] = t0
    """,
    "a complex tensor takes its own conjugate": """
        t0 = torch.tensor([1 + 2j, 3 - 1j]).to(device)
        t0.copy_(t0.conj())
    """,
    "a deep copy of a view keeps its strides": """
        t0 = torch.arange(24).reshape(2, 3, 4).to(device)
        t1 = copy.deepcopy(t0.narrow(-1, 0, 3))
        t2 = copy.deepcopy(t0[0, 0, :1].expand(3))
    """,
    "deep copies of tensors that share memory share theirs": """
        t0 = torch.arange(6).reshape(2, 3).to(device)
        t1, t2 = copy.deepcopy([t0, t0.t()])
        t1[0, 1] = 9
    """,
    "a file keeps the strides": """
        t0 = torch.arange(6).reshape(2, 3).to(device).t()
        t1 = pickle.loads(pickle.dumps(t0)).to(device)
        t2 = saved(t0)
    """,
    "a copy on the host keeps the strides": """
        t0 = torch.arange(6).reshape(2, 3).to(device).t()
        t1 = t0.cpu().clone().to(device)
    """,
    "the sign of a truth": "t0 = torch.tensor([True, False]).to(device).sign()",
    "truths are added by index": """
        t0 = torch.tensor([False, True, False]).to(device)
        t0.scatter_add_(0, torch.tensor([0, 0]).to(device), torch.tensor([True, True]).to(device))
    """,
    "a number of truth minus floats": "t0 = True - torch.arange(3.0).to(device)",
    "a number of truth minus truths": "t0 = False - torch.tensor([True]).to(device)",
    "a truth from floats in place": """
        t0 = torch.arange(3.0).to(torch.bfloat16).to(device)
        t0 -= True
    """,
    "conjugated numbers by strides": """
        t0 = torch.tensor([1 + 2j, 3 - 1j, 2 + 0j]).to(device).conj()
        t1 = t0.as_strided((2,), (2,))
        t2 = torch.as_strided_scatter(t0, t1 + 1, (2,), (1,), 1)
    """,
    "negative numbers are summed as bytes": """
        t0 = (torch.arange(4.0) - 2).to(device)
        t1 = t0.sum(dtype=torch.uint8)
        t2 = t0.cumsum(0, dtype=torch.uint8)
        t3 = t0[:2].cumprod(0, dtype=torch.uint8)
        t4 = t0[:2].prod(dtype=torch.uint8)
    """,
    "a norm of halves learns": """
        t0 = torch.arange(8.0).reshape(2, 4).to(torch.bfloat16).to(device).requires_grad_()
        t1 = F.layer_norm(t0, (4,), t0[0])
        (t1 * t1).sum().backward()
        F.batch_norm(t0, None, None, training=True).sum().backward()
        t2 = t0.grad + 1
    """,
    "complex numbers are not rounded": "t0 = torch.tensor([1 + 2j]).to(device).floor()",
    "truths have no largest": "t0 = torch.tensor([True]).to(device).argmax()",
    "what overlaps is refused before its type is": """
        t0 = torch.ones(()).to(torch.complex64).to(device).expand((2,))
        t0 ^= True
    """,
    "products of small integers are as wide as sums": """
        t0 = torch.full((4,), 5, dtype=torch.uint8).to(device)
        t1 = t0.cumprod(0)
        t2 = t0.cumsum(0)
    """,
    "integers in a range count from an integer": """
        t0 = torch.arange(-7.9, -4.0, dtype=torch.int64, device=device)
        t1 = torch.arange(0.5, 9, 1.7, dtype=torch.int32, device=device)
        t2 = torch.arange(1, 1.3, 0.1, device=device)
    """,
    "a polynomial of a number is as wide as its degrees": """
        t0 = torch.tensor(-8.7).half().to(device)
        t1 = torch.special.hermite_polynomial_he(t0, torch.arange(8.0).to(device))
    """,
    "an element shows the memory behind it": """
        t0 = torch.arange(4).reshape(2, 2).to(torch.int16).to(device)[0, 0]
        t1 = t0.as_strided((1, 3), (3, 1), 1)
        t2 = torch.as_strided_scatter(t0, t0 + 1, (), (), 0)
    """,
    "the zeta function of less than 1 is nothing": """
        t0 = torch.tensor([0.0, 0.0, 0.5, 1.0, 2.0]).to(device)
        t1 = torch.special.zeta(t0, torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]).to(device))
    """,
    "a leaf with views is detached where it stands": """
        t0 = torch.arange(6.0).reshape(2, 3).to(device, copy=True).requires_grad_()
        t1 = t0[0]
        t2 = t0.view(-1)[1:]
        t0.detach_()
        (t2 * 2).sum().backward()
        t3 = t0 + t1.detach()
    """,
    "a layer is differentiated twice": """
        t0 = torch.arange(6.0).reshape(2, 3).to(device, copy=True).requires_grad_()
        t1 = torch.ones(4, 3).to(device).requires_grad_()
        t2 = torch.ones(4).to(device).requires_grad_()
        t3 = F.linear(t0, t1, t2)
        t4 = torch.autograd.grad((t3 * t3).sum(), (t0, t1, t2), create_graph=True)
        t5 = torch.autograd.grad(sum((t * t).sum() for t in t4), (t0, t1, t2))[1]
    """,
}
