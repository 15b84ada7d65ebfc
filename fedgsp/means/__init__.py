"""Means of models, computed while the models come: by weights, robust, or by inverse distances."""
