"""Configuration: frozen pydantic models and one YAML file a preset."""

from roleagent.config.load import describe_preset, list_presets, load_config, preset_path
from roleagent.config.models import (
    AdvantageConfig,
    AgentInWorldConfig,
    EnvironmentConfig,
    EvaluationConfig,
    LearnerConfig,
    PolicyConfig,
    QualityConfig,
    RolloutConfig,
    StorageConfig,
    TrackingConfig,
    TrainConfig,
    WorldInAgentConfig,
)

__all__ = [
    "AdvantageConfig",
    "AgentInWorldConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "LearnerConfig",
    "PolicyConfig",
    "QualityConfig",
    "RolloutConfig",
    "StorageConfig",
    "TrackingConfig",
    "TrainConfig",
    "WorldInAgentConfig",
    "describe_preset",
    "list_presets",
    "load_config",
    "preset_path",
]
