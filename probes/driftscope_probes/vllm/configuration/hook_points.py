"""The places in vLLM that the probe hooks, and the versions in which they were tested."""

from __future__ import annotations

from driftscope_probes.engine import HookPoint

TESTED_VLLM = ("0.25.1", "0.27.0", "0.31.0", "0.32.0")
"""Versions that the test suite or a release check has run; others work if every hook exists."""
OLDEST_VLLM = (0, 25)
RECORDED = (
    "per chain and depth: attention mass on sink, prompt, generated and self slots; RMS of the "
    "hidden state fed in, pre-norm, post-norm and fed forward; top-1 probability and entropy. "
    "Per chain: RMS of the captured target layers before and after their norms and of the fc "
    "output. "
    "Per decode step: drafted and accepted tokens, or why nothing was drafted. "
    "Per request: TTFT, TPOT, lengths, finish reason."
)


HOOKS = {
    "v1": (
        HookPoint(
            module="vllm.v1.worker.gpu_model_runner",
            name="GPUModelRunner.execute_model",
            purpose="step time, the step's requests",
        ),
        HookPoint(
            module="vllm.v1.worker.gpu_model_runner",
            name="GPUModelRunner.sample_tokens",
            purpose="step time",
        ),
        HookPoint(
            module="vllm.v1.spec_decode.llm_base_proposer",
            name="SpecDecodeBaseProposer.load_model",
            purpose="taps on the drafter",
        ),
        HookPoint(
            module="vllm.v1.spec_decode.llm_base_proposer",
            name="SpecDecodeBaseProposer.propose",
            purpose="the draft",
        ),
        HookPoint(
            module="vllm.v1.spec_decode.llm_base_proposer",
            name="SpecDecodeBaseProposer._determine_batch_execution_and_padding",
            purpose="chains without CUDA graphs (DRIFTSCOPE_RECORDING=eager or shadow)",
            optional=True,
        ),
        HookPoint(
            module="vllm.v1.worker.gpu_model_runner",
            name="GPUModelRunner._get_eagle3_aux_layers_from_config",
            purpose="source of the captured layers",
            optional=True,
        ),
        HookPoint(
            module="vllm.v1.spec_decode.medusa",
            name="MedusaProposer.propose",
            purpose="Medusa's draft",
            optional=True,
        ),
    ),
    "v2": (
        HookPoint(
            module="vllm.v1.worker.gpu.model_runner",
            name="GPUModelRunner.execute_model",
            purpose="step time",
        ),
        HookPoint(
            module="vllm.v1.worker.gpu.model_runner",
            name="GPUModelRunner.sample_tokens",
            purpose="step time and the step's requests",
        ),
        HookPoint(
            module="vllm.v1.worker.gpu.spec_decode.eagle.speculator",
            name="EagleSpeculator.load_model",
            purpose="taps on the drafter",
        ),
        HookPoint(
            module="vllm.v1.worker.gpu.spec_decode.eagle.speculator",
            name="EagleSpeculator.propose",
            purpose="the draft",
        ),
        HookPoint(
            module="vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils",
            name="get_eagle3_aux_layers_from_config",
            purpose="source of the captured layers",
            optional=True,
        ),
        *(
            HookPoint(
                module=f"vllm.v1.worker.gpu.spec_decode.{module}.speculator",
                name=f"{speculator}.propose",
                purpose="the draft",
                optional=True,
            )
            for module, speculator in (
                ("mtp", "MTPSpeculator"),
                ("standalone_ar", "StandaloneARSpeculator"),
                ("dflash", "DFlashSpeculator"),
                ("multi_module_mtp", "MultiModuleMTPSpeculator"),
            )
        ),
    ),
    "worker": (
        HookPoint(
            module="vllm.v1.worker.worker_base",
            name="WorkerBase",
            purpose="control while it runs",
        ),
        HookPoint(
            module="vllm.v1.worker.gpu_worker",
            name="Worker.load_model",
            purpose="start of the run, once every model is loaded; drafters without a model",
        ),
        HookPoint(
            module="vllm.model_executor.models.interfaces",
            name="EagleModelMixin.aux_hidden_state_layers",
            purpose="list of captured target layers",
            optional=True,
        ),
    ),
    "engine": (
        HookPoint(
            module="vllm.v1.core.sched.scheduler",
            name="Scheduler.update_from_output",
            purpose="verification",
        ),
        HookPoint(
            module="vllm.v1.core.sched.scheduler",
            name="Scheduler._free_request",
            purpose="finished requests",
        ),
        HookPoint(
            module="vllm.v1.engine.core",
            name="EngineCore.shutdown",
            purpose="closing the trace",
        ),
    ),
}
"""Hooks by part of vLLM: V1 model runner, V2 model runner, their worker, engine core."""
