"""TorchRec's tables shared out by rows: each rank has some rows of each table, and asks the others for the rest.

What DistributedModelParallel does for a whole model is done here for the tables alone, as the rest is Lightning's DDP's. Checkpoints and exports have whole tables and
whole moments: any number of ranks reads them.
"""

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv


def shard(model: torch.nn.Module, tower: torch.nn.Module) -> None:
    """In place of the tower's tables, which all ranks have alike, their rows of this rank. Plain parameters with plain gradients (TorchRec's kernel "dense"), so
    that one optimizer has them and all others: TorchRec's fused ones bring an optimizer of their own."""
    names = [config.name for config in tower.bags.embedding_bag_configs()]
    whole = {name: table.detach().clone() for name, table in tower.bags.named_parameters()}
    sharder, ranks = EmbeddingBagCollectionSharder(), distributed.get_world_size()
    plan = construct_module_sharding_plan(
        tower.bags,
        {name: row_wise(compute_kernel="dense") for name in names},
        sharder=sharder,
        local_size=ranks,
        world_size=ranks,
        device_type="cpu",
    )
    env = ShardingEnv.from_process_group(distributed.group.WORLD)
    tower.bags = sharder.shard(tower.bags, plan, env, torch.device("cpu"))
    with torch.no_grad():
        for name, rows in tower.bags.named_parameters():
            rows.copy_(own_rows(whole[name]))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, list(_tables(model)))


def _tables(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """This rank's rows, by name."""
    return {name: rows for name, rows in model.named_parameters() if ".embedding_bags." in name}


def own_rows(whole: torch.Tensor) -> torch.Tensor:
    """TorchRec's blocks: of ceil(rows / ranks), the last ones may be smaller or empty."""
    ranks, rank = distributed.get_world_size(), distributed.get_rank()
    block = -(-len(whole) // ranks)
    return whole[min(rank * block, len(whole)) : min((rank + 1) * block, len(whole))]


def whole_rows(own: torch.Tensor) -> torch.Tensor:
    """All ranks have to call it."""
    parts = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, own.detach().clone())
    return torch.cat(parts)


def whole_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """As state_dict() of a model whose tables are not shared out. All ranks have to call it."""
    return model.state_dict() | {name: whole_rows(rows) for name, rows in _tables(model).items()}


def _moments(model: torch.nn.Module, checkpoint: dict):
    """(a table's state of the optimizer, the name of a moment) for each that has a value a row. The state is a copy: the checkpoint had the optimizer's own."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    tables = _tables(model)
    for optimizer in checkpoint["optimizer_states"]:
        for place, state in list(optimizer["state"].items()):
            if trained[place] in tables:
                state = optimizer["state"][place] = dict(state)
                yield from ((state, key) for key, value in state.items() if value.dim() > 0)


def gather_into(model: torch.nn.Module, checkpoint: dict) -> None:
    """All ranks have to call it."""
    checkpoint["state_dict"] = whole_state(model)
    for state, key in list(_moments(model, checkpoint)):
        state[key] = whole_rows(state[key])


def cut_out_of(model: torch.nn.Module, checkpoint: dict) -> None:
    """Before Lightning loads what is left."""
    with torch.no_grad():
        for name, rows in _tables(model).items():
            rows.copy_(own_rows(checkpoint["state_dict"][name]))
    own = model.state_dict()  # tables in TorchRec's own form, which alone it loads
    checkpoint["state_dict"] |= {name: own[name] for name in _tables(model)}
    for state, key in list(_moments(model, checkpoint)):
        state[key] = own_rows(state[key]).clone()
