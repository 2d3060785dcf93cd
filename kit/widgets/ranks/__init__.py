"""Pictures of many ranks: who was slow, who waited, on one clock."""
