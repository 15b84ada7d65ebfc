"""Modelled costs of a run: computing time, communication time and traffic (FedGSP, cost model).

T_comp(r) = N_calc / T_FLOPS * n * e * K / min(K, f(r)) + N_aggr / T_FLOPS * (kappa * f(r) - 1)   seconds
T_comm(r) = 8 * kappa * K * size * (1 / R_in + 1 / R_out)                                         seconds
D_comm(r) = 2 * kappa * K * size                                                                  bytes

FedAvg is f(r) = K. Traffic between managers and the top server is left out: in the paper they share a machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostModel:
    """Constants of the cost model; the defaults are those of the FedGSP paper."""

    clients: int = 368
    sampling_rate: float = 0.3
    local_epochs: int = 1
    samples_per_client: float = 226.0
    model_bytes: float = 25.2e6
    #: N_calc, to train on one sample.
    flop_per_sample: float = 96e6
    #: N_aggr, to add one model to another.
    flop_per_aggregation: float = 6.3e6
    flop_per_second: float = 567e9
    #: R_in and R_out of a client, bits per second.
    download_rate: float = 567e6
    upload_rate: float = 567e6

    def t_comp_s(self, groups: int) -> float:
        """Seconds of computing in a round of f(r) = `groups`: the chain of one group, then the aggregation."""
        samples = self.samples_per_client * self.local_epochs * self.clients / max(1, min(self.clients, groups))
        # A share of a group, kappa * f(r) < 1, still means one group, and one group needs no aggregation.
        additions = max(0.0, self.sampling_rate * groups - 1)
        return (self.flop_per_sample * samples + self.flop_per_aggregation * additions) / self.flop_per_second

    def t_comm_s(self) -> float:
        """Seconds of transfer in a round: every sampled client downloads and uploads one model."""
        bits = 8 * self.sampling_rate * self.clients * self.model_bytes
        return bits * (1 / self.download_rate + 1 / self.upload_rate)

    def d_comm_bytes(self) -> float:
        """Bytes to and from the sampled clients in a round."""
        return 2 * self.sampling_rate * self.clients * self.model_bytes
