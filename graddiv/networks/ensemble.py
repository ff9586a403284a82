"""Random ensembles: the noise is which of k networks answers."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.randomized import BoundModel, Noise, RandomizedNetwork, Support, Theta, check_noise
from graddiv.seeding import uniform


class EnsembleNetwork(RandomizedNetwork):
    """f = f_i with probability p_i, i = 1 .. k: one member answers, drawn anew for every question.

    The deterministic ensembles of GAL, ADP and DVERGE, which average the members' probabilities, are what `predict`
    makes of it, exactly: it asks every member once where they are equally likely.  Its adversary sees all members: the
    mean of their gradients is an exact sum over `support`, but weakest just where they are diverse, so that an attack
    which goes from member to member (ARC, Dbouk & Shanbhag 2022) belongs beside it.
    """

    module: nn.ModuleList

    def __init__(self, members: nn.ModuleList, probabilities: Float64[Tensor, " k"]) -> None:
        super().__init__(members)
        self.probabilities = probabilities

    @property
    def members(self) -> list[nn.Module]:
        """The k networks."""
        return list(self.module)

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        u = uniform(seed, torch.tensor([-1]), 1)[0]  # -1: the address of no example
        member = torch.searchsorted(self.probabilities.cumsum(0), u, right=True).clamp_max(len(self.module) - 1)
        return {"member": member[0].to(self.device)}

    def support(self) -> Support:
        everyone = torch.arange(len(self.module), device=self.device)
        return Support([{"member": i} for i in everyone], self.probabilities)

    def bind(self, noise: Noise, theta: Theta | None = None) -> BoundModel:
        tensors = self.realise(noise, theta or self.theta())
        return BoundModel(self.module[self._member(noise)], tensors)

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        """Return the parameters of the member that the noise names, as that member calls them."""
        prefix = f"{self._member(noise)}."
        own = {name: p for name, p in theta.parameters.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): p for name, p in own.items()}

    def _member(self, noise: Noise) -> int:
        member = int(check_noise(noise, {"member": ()}, self.device)["member"])
        if not 0 <= member < len(self.module):
            raise GradDivError(f"noise names member {member} of {len(self.module)}: it belongs to another network")
        return member


def ensemble(members: Sequence[nn.Module], probabilities: Sequence[float] | None = None) -> EnsembleNetwork:
    """Make a random ensemble of two or more networks.

        F = ensemble([module, another])

    Returns a `RandomizedNetwork`: a sample model is one of the members.

    members: the networks; initialise them independently, since members that start alike have the same gradients.
    probabilities: how often each answers; equally often by default.
    """
    k = len(members)
    if k < 2:
        raise GradDivError(f"there are {k} members, expected at least two networks")
    if any(isinstance(member, RandomizedNetwork) for member in members):
        raise GradDivError("a member is a RandomizedNetwork already: expected plain modules, whose choice is the noise")
    p = torch.full((k,), 1 / k, dtype=torch.float64)
    if probabilities is not None:
        p = torch.tensor(list(probabilities), dtype=torch.float64)
    if len(p) != k or not (p > 0).all() or abs(float(p.sum()) - 1) > 1e-6:
        raise GradDivError(f"probabilities are {p.tolist()}, expected {k} positive numbers that sum to 1")
    return EnsembleNetwork(nn.ModuleList(members), p / p.sum())


def adp_diversity(
    logits: Float[Tensor, "k b c"], y: Int64[Tensor, " b"], alpha: float = 2.0, beta: float = 0.5
) -> Float64[Tensor, " b"]:
    """alpha H(mean_i p_i) + beta log det(M^T M + 1e-6 I), the diversity that ADP (Pang et al. 2019) rewards.

    p_i is the softmax of member i, H the entropy, and the columns of M are the p_i without the true class, of unit
    length: the members should disagree on which wrong class comes next.  k columns of c - 1 entries are independent
    only if k < c.  In float64, as nearly equal members make the determinant tiny.
    """
    k, _, c = logits.shape
    if k >= c:
        raise GradDivError(f"ADP has {k} members and {c} classes, expected fewer members than classes")
    p = logits.double().softmax(2)
    mean = p.mean(0)
    entropy: Tensor = -torch.special.xlogy(mean, mean.clamp_min(1e-300)).sum(1)
    others = torch.ones_like(mean, dtype=torch.bool).scatter(1, y[:, None], False)
    wrong = p.transpose(0, 1)[others[:, None].expand(-1, k, -1)].reshape(len(y), k, c - 1)
    wrong = wrong / torch.linalg.vector_norm(wrong, dim=2, keepdim=True).clamp_min(1e-150)
    gram = wrong @ wrong.mT + 1e-6 * torch.eye(k, dtype=torch.float64, device=y.device)
    log_volume: Tensor = torch.linalg.slogdet(gram).logabsdet
    return alpha * entropy + beta * log_volume
