"""What the tests of one process need not work out twice, where none of them asks how it is done."""
