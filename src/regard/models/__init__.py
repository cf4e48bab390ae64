"""Models: modules made of the layers, for bags, sequences and images."""

from regard.models.language import LanguageModel, language_model
from regard.models.transformer import TextEncoder, Transformer, TransformerConfig, text_encoder

__all__ = ["LanguageModel", "TextEncoder", "Transformer", "TransformerConfig", "language_model", "text_encoder"]
