"""What tests of several layers share: tiny models and vocabularies written on the fly."""
